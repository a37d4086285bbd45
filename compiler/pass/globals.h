/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * globals.h: large static data as objects of their own.
 * In: a module. Out: the same, whose large variables begin at an OS page. Knows nothing of
 * accesses.
 */
#ifndef TIERCEL_PASS_GLOBALS_H
#define TIERCEL_PASS_GLOBALS_H

#include <llvm/IR/Module.h>

namespace tiercel {

/* The smallest object that is placed on its own: TCL_PAGE of include/tiercel_wire.h. */
constexpr uint64_t ObjectBytes = 4096;

/* Bytes of a variable; 0: not known. */
uint64_t bytes_of(const llvm::GlobalVariable &global);

/* Has variables of at least ObjectBytes begin at a multiple of them, so that no other variable is
 * in their first OS page. Whether any changed. */
bool align_large(llvm::Module &module);

} // namespace tiercel

#endif
