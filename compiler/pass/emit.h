/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * emit.h: writes checks into a function.
 * In: checks. Out: instructions, and calls of the probe (include/tiercel_probe.h). Knows nothing of
 * why a check stands where it does.
 */
#ifndef TIERCEL_PASS_EMIT_H
#define TIERCEL_PASS_EMIT_H

#include "groups.h"
#include <llvm/IR/Module.h>

namespace tiercel {

/* Writes all `checks`, which are of functions of this module. */
void emit(llvm::Module &module, const std::vector<Check> &checks);

} // namespace tiercel

#endif
