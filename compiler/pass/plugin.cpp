/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * plugin.cpp: the pass as a plug-in of LLVM 19's new pass manager, for clang, flang and lld.
 * In: modules at the end of optimisation, once each. Out: the same, whose accesses are checked.
 * Knows nothing of what a check is.
 *
 * Under link-time optimisation lld runs the pass: clang gets no plug-in then. Of lld's pipelines
 * one calls back for thin, the other for full LTO; functions are marked so that both may.
 */
#include "emit.h"
#include "globals.h"
#include "groups.h"
#include <llvm/IR/PassManager.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Passes/PassPlugin.h>

using namespace llvm;

namespace {

constexpr char Done[] = "tiercel-done";

bool is_ours_to_check(const Function &function) {
    return !function.isDeclaration() && !function.hasAvailableExternallyLinkage() &&
           !function.hasFnAttribute(Attribute::Naked) && !function.hasFnAttribute(Done);
}

class ProbePass : public PassInfoMixin<ProbePass> {
  public:
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
    static bool check(Function &function, FunctionAnalysisManager &manager) {
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

void add(ModulePassManager &passes, OptimizationLevel) {
    passes.addPass(ProbePass());
}

} // namespace

extern "C" __attribute__((visibility("default"))) PassPluginLibraryInfo llvmGetPassPluginInfo() {
    return {LLVM_PLUGIN_API_VERSION, "tiercel", LLVM_VERSION_STRING, [](PassBuilder &builder) {
                builder.registerOptimizerLastEPCallback(add);
                builder.registerFullLinkTimeOptimizationLastEPCallback(add);
            }};
}
