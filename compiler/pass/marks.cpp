/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * marks.cpp: see marks.h.
 *
 *   preheader   before = tiercel_mark_enter(&mark)
 *     loop      ...
 *   each exit   tiercel_mark_exit(&mark, before)      also where an exception leaves
 *
 * Loops that have no more than one loop around them: a program's time is in loops over steps, and
 * in those that a step has. The mark is one variable for all loops of a name in a module.
 */
#include "marks.h"
#include "probes.h"
#include <llvm/Analysis/AssumptionCache.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/IR/DebugInfoMetadata.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>
#include <llvm/Transforms/Utils/LoopSimplify.h>

using namespace llvm;

namespace tiercel {
namespace {

constexpr unsigned DepthMax = 2;

constexpr char Prefix[] = "tiercel.mark.";
constexpr char Marked[] = "tiercel-marked";

/* TCL_PHASE_NAME_MAX of include/tiercel_wire.h. */
constexpr size_t NameMax = 51;

/* function:line, as long as a phase's name may be; empty where the line is not known. */
std::string name_of(const Loop &loop) {
    DebugLoc start = loop.getStartLoc();
    const DISubprogram *function = start ? start->getScope()->getSubprogram() : nullptr;
    if (!function || !start.getLine())
        return "";
    std::string line = ":" + std::to_string(start.getLine());
    std::string name = simple_name(function->getName());
    return name.substr(0, NameMax - line.size()) + line;
}

class Marker {
  public:
    Marker(Module &module, bool is_planned) : module(module), is_planned(is_planned) {
        LLVMContext &context = module.getContext();
        pointer = PointerType::getUnqual(context);
        enter = probe("tiercel_mark_enter", FunctionType::get(pointer, {pointer}, false));
        Type *nothing = Type::getVoidTy(context);
        leave = probe("tiercel_mark_exit", FunctionType::get(nothing, {pointer, pointer}, false));
    }

    void mark(Loop &loop, StringRef name) {
        GlobalVariable *mark = variable(name);
        IRBuilder<> build(loop.getLoopPreheader()->getTerminator());
        build.SetCurrentDebugLocation(loop.getStartLoc());
        CallInst *before = build.CreateCall(enter, {mark});
        before->setCallingConv(CallingConv::PreserveMost);
        SmallVector<BasicBlock *> exits;
        loop.getUniqueExitBlocks(exits);
        for (BasicBlock *exit : exits) {
            IRBuilder<> after(exit, exit->getFirstInsertionPt());
            after.SetCurrentDebugLocation(loop.getStartLoc());
            after.CreateCall(leave, {mark, before})->setCallingConv(CallingConv::PreserveMost);
        }
    }

  private:
    Module &module;
    bool is_planned;
    PointerType *pointer;
    FunctionCallee enter, leave;

    FunctionCallee probe(StringRef name, FunctionType *type) {
        FunctionCallee callee = declare_probe(module, name, type);
        auto *function = cast<Function>(callee.getCallee());
        function->addFnAttr(Attribute::WillReturn);
        function->setMemoryEffects(MemoryEffects::inaccessibleOrArgMemOnly());
        return callee;
    }

    /* struct tiercel_probe_mark. */
    GlobalVariable *variable(StringRef name) {
        std::string symbol = (Prefix + name).str();
        if (GlobalVariable *known = module.getNamedGlobal(symbol))
            return known;
        LLVMContext &context = module.getContext();
        Type *word = Type::getInt32Ty(context), *wide = Type::getInt64Ty(context);
        auto *type = StructType::get(context, {pointer, word, word, word, word, wide, word, word});
        Constant *text = ConstantDataArray::getString(context, name);
        auto *string = new GlobalVariable(module, text->getType(), true,
                                          GlobalValue::PrivateLinkage, text, "tiercel.name");
        std::vector<Constant *> fields = {string, ConstantInt::get(word, is_planned)};
        for (unsigned n = 2; n < type->getNumElements(); n++)
            fields.push_back(Constant::getNullValue(type->getElementType(n)));
        return new GlobalVariable(module, type, false, GlobalValue::InternalLinkage,
                                  ConstantStruct::get(type, fields), symbol);
    }
};

bool can_mark(const Loop &loop) {
    if (!loop.getLoopPreheader() || !loop.hasDedicatedExits())
        return false;
    SmallVector<BasicBlock *> exits;
    loop.getUniqueExitBlocks(exits);
    return all_of(exits,
                  [](BasicBlock *exit) { return exit->getFirstInsertionPt() != exit->end(); });
}

} // namespace

bool mark_loops(Function &function, FunctionAnalysisManager &manager, const Plan *plan) {
    if (function.hasFnAttribute(Marked))
        return false;
    function.addFnAttr(Marked);
    LoopInfo &loops = manager.getResult<LoopAnalysis>(function);
    if (loops.empty() || function.callsFunctionThatReturnsTwice() || function.isPresplitCoroutine())
        return false;
    auto &dominators = manager.getResult<DominatorTreeAnalysis>(function);
    auto &assumptions = manager.getResult<AssumptionAnalysis>(function);
    std::vector<std::pair<Loop *, std::string>> wanted;
    for (Loop *loop : loops.getLoopsInPreorder()) {
        std::string name = loop->getLoopDepth() <= DepthMax ? name_of(*loop) : "";
        if (!name.empty() && (!plan || plan->has_phase(name)))
            wanted.emplace_back(loop, name);
    }
    if (wanted.empty())
        return false;
    for (Loop *loop : loops)
        simplifyLoop(loop, &dominators, &loops, nullptr, &assumptions, nullptr, false);
    Marker marker(*function.getParent(), plan != nullptr);
    for (auto &[loop, name] : wanted)
        if (can_mark(*loop))
            marker.mark(*loop, name);
    manager.invalidate(function, PreservedAnalyses::none());
    return true;
}

std::vector<std::string> marks_of(const Module &module) {
    std::vector<std::string> names;
    for (const GlobalVariable &global : module.globals())
        if (global.getName().starts_with(Prefix))
            names.push_back(global.getName().drop_front(strlen(Prefix)).str());
    return names;
}

} // namespace tiercel
