/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * probes.h: declares a function of the probe (include/tiercel_probe.h) in a module.
 * In: its name and type. Out: the function. Knows nothing of where it is called.
 */
#ifndef TIERCEL_PASS_PROBES_H
#define TIERCEL_PASS_PROBES_H

#include <llvm/IR/Module.h>

namespace tiercel {

/* Linked into the same program, it keeps nearly all registers and throws nothing. */
inline llvm::FunctionCallee declare_probe(llvm::Module &module, llvm::StringRef name,
                                          llvm::FunctionType *type) {
    llvm::FunctionCallee callee = module.getOrInsertFunction(name, type);
    auto *function = llvm::cast<llvm::Function>(callee.getCallee());
    function->setVisibility(llvm::GlobalValue::HiddenVisibility);
    function->setDSOLocal(true);
    function->setCallingConv(llvm::CallingConv::PreserveMost);
    function->addFnAttr(llvm::Attribute::NoUnwind);
    return callee;
}

} // namespace tiercel

#endif
