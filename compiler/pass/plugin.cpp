/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * plugin.cpp: the pass as a plug-in of LLVM 19's new pass manager, for clang, flang and lld.
 * In: modules at the end of optimisation, once each; TIERCEL_CC and TIERCEL_PLAN of the
 * environment. Out: the same, with checks of their accesses, or with what a plan states about them.
 * Knows nothing of how either is done.
 *
 *   profile   checks
 *   marks     checks; marks of all loops that may be phases
 *   apply     marks of the loops that the plan names; births of hot and cold small objects
 *
 * Under link-time optimisation lld runs the pass: clang gets no plug-in then. Of lld's pipelines
 * one calls back for thin, the other for full LTO; functions are marked so that both may. Loops are
 * marked before they are vectorised, which full LTO does not call back for: it marks them at last.
 */
#include "births.h"
#include "emit.h"
#include "globals.h"
#include "groups.h"
#include "marks.h"
#include <llvm/IR/PassManager.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Passes/PassPlugin.h>
#include <llvm/Transforms/Utils/ModuleUtils.h>

using namespace llvm;

namespace {

constexpr char Done[] = "tiercel-done";

/* Texts of what was applied, for `readelf -p`. */
constexpr char AppliedSection[] = ".tiercel_applied";

StringRef variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

bool is_ours_to_check(const Function &function) {
    return !function.isDeclaration() && !function.hasAvailableExternallyLinkage() &&
           !function.hasFnAttribute(Attribute::Naked) && !function.hasFnAttribute(Done);
}

/* Marks, where loops are still what they are in the source. */
class MarkPass : public PassInfoMixin<MarkPass> {
  public:
    explicit MarkPass(bool is_planned) : is_planned(is_planned) {}

    PreservedAnalyses run(Function &function, FunctionAnalysisManager &manager) {
        Module &module = *function.getParent();
        const tiercel::Plan *plan = is_planned ? tiercel::Plan::of_process(module) : nullptr;
        bool is_ours = is_ours_to_check(function) && (plan || !is_planned);
        return is_ours && tiercel::mark_loops(function, manager, plan) ? PreservedAnalyses::none()
                                                                       : PreservedAnalyses::all();
    }

    static bool isRequired() { return true; }

  private:
    bool is_planned;
};

/* Checks. */
class ProbePass : public PassInfoMixin<ProbePass> {
  public:
    explicit ProbePass(bool has_marks) : has_marks(has_marks) {}

    PreservedAnalyses run(Module &module, ModuleAnalysisManager &manager) {
        auto &proxy = manager.getResult<FunctionAnalysisManagerModuleProxy>(module);
        auto &functions = proxy.getManager();
        bool has_changed = tiercel::align_large(module);
        for (Function &function : module)
            if (is_ours_to_check(function))
                has_changed |= check(function, functions);
        return has_changed ? PreservedAnalyses::none() : PreservedAnalyses::all();
    }

    /* Also of functions that must not be optimised. */
    static bool isRequired() { return true; }

  private:
    bool has_marks;

    bool check(Function &function, FunctionAnalysisManager &manager) {
        if (has_marks)
            tiercel::mark_loops(function, manager, nullptr);
        tiercel::Analyses known = {manager.getResult<DominatorTreeAnalysis>(function),
                                   manager.getResult<LoopAnalysis>(function),
                                   manager.getResult<ScalarEvolutionAnalysis>(function)};
        std::vector<tiercel::Check> checks = tiercel::checks_of(function, known);
        function.addFnAttr(Done);
        if (!checks.empty())
            tiercel::emit(*function.getParent(), checks);
        manager.invalidate(function, PreservedAnalyses::none());
        return true;
    }
};

/* What a plan states. */
class ApplyPass : public PassInfoMixin<ApplyPass> {
  public:
    PreservedAnalyses run(Module &module, ModuleAnalysisManager &manager) {
        const tiercel::Plan *plan = tiercel::Plan::of_process(module);
        if (!plan)
            return PreservedAnalyses::all();
        auto &proxy = manager.getResult<FunctionAnalysisManagerModuleProxy>(module);
        std::string births;
        for (Function &function : module)
            if (is_ours_to_check(function))
                apply(function, proxy.getManager(), *plan, births);
        std::string applied;
        for (const std::string &name : tiercel::marks_of(module))
            applied += "mark " + name + '\0';
        note(module, applied + births);
        return PreservedAnalyses::none();
    }

    static bool isRequired() { return true; }

  private:
    /* The loops first: births add blocks that their analyses do not know. */
    static void apply(Function &function, FunctionAnalysisManager &manager,
                      const tiercel::Plan &plan, std::string &applied) {
        tiercel::mark_loops(function, manager, &plan);
        for (const std::string &birth : tiercel::place_births(function, plan))
            applied += birth + '\0';
        function.addFnAttr(Done);
        manager.invalidate(function, PreservedAnalyses::none());
    }

    static void note(Module &module, StringRef applied) {
        if (applied.empty())
            return;
        Constant *text = ConstantDataArray::getString(module.getContext(), applied, false);
        auto *note = new GlobalVariable(module, text->getType(), true, GlobalValue::PrivateLinkage,
                                        text, "tiercel.applied");
        note->setSection(AppliedSection);
        note->setAlignment(Align(1));
        appendToUsed(module, {note});
    }
};

void add(ModulePassManager &passes, OptimizationLevel) {
    StringRef mode = variable("TIERCEL_CC");
    if (mode == "apply")
        passes.addPass(ApplyPass());
    else
        passes.addPass(ProbePass(mode == "marks"));
}

void add_marks(FunctionPassManager &passes, OptimizationLevel) {
    StringRef mode = variable("TIERCEL_CC");
    if (mode == "apply" || mode == "marks")
        passes.addPass(MarkPass(mode == "apply"));
}

} // namespace

extern "C" __attribute__((visibility("default"))) PassPluginLibraryInfo llvmGetPassPluginInfo() {
    return {LLVM_PLUGIN_API_VERSION, "tiercel", LLVM_VERSION_STRING, [](PassBuilder &builder) {
                builder.registerOptimizerLastEPCallback(add);
                builder.registerFullLinkTimeOptimizationLastEPCallback(add);
                builder.registerVectorizerStartEPCallback(add_marks);
            }};
}
