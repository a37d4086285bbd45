/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * births.cpp: see births.h. Of `p = malloc(n)`:
 *
 *   p = tiercel_birth_c(1, n, TIERCEL_HOT)     NULL: not small, or there is no runtime
 *   if (!p)
 *       p = malloc(n)                          the call stays, so that its stack is the plan's
 */
#include "births.h"
#include "../../include/tiercel_probe.h"
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InstrTypes.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>

using namespace llvm;

namespace tiercel {
namespace {

/* SMALL_LIMIT of runtime/alloc/heap.h. */
constexpr uint64_t SmallBytes = 4096;

enum class Maker { None, Malloc, Calloc, New };

Maker maker_of(const CallBase &call) {
    const Function *callee = call.getCalledFunction();
    if (!callee || !callee->isDeclaration() || call.isMustTailCall() ||
        !callee->getReturnType()->isPointerTy())
        return Maker::None;
    StringRef name = callee->getName();
    if (name == "malloc" && call.arg_size() == 1)
        return Maker::Malloc;
    if (name == "calloc" && call.arg_size() == 2)
        return Maker::Calloc;
    bool is_new = name == "_Znwm" || name == "_Znam";
    return is_new && call.arg_size() == 1 ? Maker::New : Maker::None;
}

bool is_large(const CallBase &call) {
    uint64_t bytes = 1;
    for (const Value *argument : call.args()) {
        auto *known = dyn_cast<ConstantInt>(argument);
        if (!known)
            return false;
        bytes = SaturatingMultiply(bytes, known->getZExtValue());
    }
    return bytes >= SmallBytes;
}

class Birth {
  public:
    Birth(CallBase &call, Maker maker, Temperature temperature)
        : call(call), maker(maker), temperature(temperature) {}

    void place() {
        if (auto *invoke = dyn_cast<InvokeInst>(&call))
            return place_invoke(*invoke);
        IRBuilder<> build(&call);
        Value *small = ask(build);
        BasicBlock *head = call.getParent();
        Instruction *then =
            SplitBlockAndInsertIfThen(build.CreateIsNull(small), &call, false, unlikely());
        BasicBlock *tail = call.getParent();
        call.moveBefore(then);
        join(*tail, small, head);
    }

  private:
    CallBase &call;
    Maker maker;
    Temperature temperature;

    MDNode *unlikely() { return MDBuilder(call.getContext()).createUnlikelyBranchWeights(); }

    Value *ask(IRBuilder<> &build) {
        Module &module = *call.getModule();
        Type *word = build.getInt32Ty(), *bytes = call.getArgOperand(0)->getType();
        auto *type = FunctionType::get(call.getType(), {bytes, bytes, word}, false);
        StringRef name = maker == Maker::New ? "tiercel_birth_cxx" : "tiercel_birth_c";
        FunctionCallee callee = module.getOrInsertFunction(name, type);
        auto *function = cast<Function>(callee.getCallee());
        function->setVisibility(GlobalValue::HiddenVisibility);
        function->setDSOLocal(true);
        function->addFnAttr(Attribute::NoUnwind);
        uint32_t what = static_cast<uint32_t>(temperature);
        if (maker == Maker::Calloc)
            what |= TIERCEL_PROBE_ZEROED;
        Value *count = maker == Maker::Calloc ? call.getArgOperand(0) : ConstantInt::get(bytes, 1);
        Value *each = call.getArgOperand(call.arg_size() - 1);
        return build.CreateCall(callee, {count, each, build.getInt32(what)});
    }

    /* An invoke ends its block: the joint is a block on the way to where it goes on. */
    void place_invoke(InvokeInst &invoke) {
        BasicBlock *head = invoke.getParent(), *next = invoke.getNormalDest();
        BasicBlock *tail = SplitBlock(head, &invoke);
        BasicBlock *joint =
            BasicBlock::Create(call.getContext(), "tiercel.born", head->getParent(), next);
        next->replacePhiUsesWith(tail, joint);
        invoke.setNormalDest(joint);
        IRBuilder<>(joint).CreateBr(next);
        head->getTerminator()->eraseFromParent();
        IRBuilder<> build(head);
        build.SetCurrentDebugLocation(invoke.getDebugLoc());
        Value *small = ask(build);
        build.CreateCondBr(build.CreateIsNull(small), tail, joint, unlikely());
        join(*joint, small, head);
    }

    /* At the beginning of `joint`: the small object, from `head`, or the call's. */
    void join(BasicBlock &joint, Value *small, BasicBlock *head) {
        IRBuilder<> build(&joint, joint.begin());
        build.SetCurrentDebugLocation(call.getDebugLoc());
        PHINode *born = build.CreatePHI(call.getType(), 2, "tiercel.born");
        call.replaceAllUsesWith(born);
        born->addIncoming(small, head);
        born->addIncoming(&call, call.getParent());
    }
};

} // namespace

std::vector<std::string> place_births(Function &function, const Plan &plan) {
    std::vector<Birth> births;
    std::vector<std::string> applied;
    for (BasicBlock &block : function)
        for (Instruction &at : block) {
            auto *call = dyn_cast<CallBase>(&at);
            Maker maker = call ? maker_of(*call) : Maker::None;
            if (maker == Maker::None || is_large(*call))
                continue;
            std::string place;
            Temperature temperature = plan.of(places_of(at.getDebugLoc()), place);
            if (temperature != Temperature::Hot && temperature != Temperature::Cold)
                continue;
            births.emplace_back(*call, maker, temperature);
            applied.push_back((temperature == Temperature::Hot ? "hot " : "cold ") + place);
        }
    for (Birth &birth : births)
        birth.place();
    return applied;
}

} // namespace tiercel
