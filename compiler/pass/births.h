/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * births.h: small objects are born among others of their temperature, where a plan knows it.
 * In: a function, a plan. Out: calls of the probe before those of malloc and operator new. Knows
 * nothing of heaps.
 */
#ifndef TIERCEL_PASS_BIRTHS_H
#define TIERCEL_PASS_BIRTHS_H

#include "plan.h"
#include <llvm/IR/Function.h>

namespace tiercel {

/* Changes the births of a function; what was applied: `hot` or `cold`, and the place. */
std::vector<std::string> place_births(llvm::Function &function, const Plan &plan);

} // namespace tiercel

#endif
