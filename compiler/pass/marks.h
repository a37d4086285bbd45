/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * marks.h: marks where loops begin and end, which are phases of the program.
 * In: a function, before its loops are unrolled and vectorised, as one becomes several then; which
 * names are wanted. Out: calls of the probe (include/tiercel_probe.h). Knows
 * nothing of what a phase is for.
 */
#ifndef TIERCEL_PASS_MARKS_H
#define TIERCEL_PASS_MARKS_H

#include "plan.h"
#include <llvm/IR/Function.h>
#include <llvm/IR/PassManager.h>

namespace tiercel {

/* Marks the loops of a function that may be phases, unless that was done; with a plan those that it
 * names. True: analyses of the function are of no use any more. */
bool mark_loops(llvm::Function &function, llvm::FunctionAnalysisManager &manager, const Plan *plan);

/* The names of all marks of a module. */
std::vector<std::string> marks_of(const llvm::Module &module);

} // namespace tiercel

#endif
