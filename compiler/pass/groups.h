/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * groups.h: accesses that one check at run time covers.
 * In: a function's accesses. Out: checks, each with where it stands and the bytes it covers.
 * Knows nothing of how a check is written.
 *
 *   within a block    accesses at known distances, within a line's size, with no call between
 *   within a loop     in blocks that each iteration comes to:
 *     same address    one check before the loop, and before the loops around it
 *     small steps     one before the loop; in it, only when the leading edge enters a line
 *
 * What is merged would have hit the line that was just used. That is not so only where what ran in
 * between, an inner loop or a call, drove the line out of all caches: then one miss is left out
 * beside the thousands that this took.
 */
#ifndef TIERCEL_PASS_GROUPS_H
#define TIERCEL_PASS_GROUPS_H

#include "accesses.h"
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/IR/DebugLoc.h>
#include <llvm/IR/Dominators.h>

namespace tiercel {

/* A check of the bytes [pointer + low, pointer + high), or of a range. */
struct Check {
    Access first; /* it stands before first.at, at first.pointer */
    int64_t low = 0, high = 0;
    llvm::Align align; /* of pointer + low */
    bool dirties = false;
    /* Not 0: checked only when the edge that leads, at this many bytes an iteration, has entered a
     * line. */
    int64_t step = 0;
    const llvm::SCEV *address = nullptr;
    uint32_t pattern = 0;     /* enum tiercel_probe_pattern */
    llvm::DebugLoc where;     /* of the access, wherever the check stands */

    uint64_t span() const { return static_cast<uint64_t>(high - low); }
    /* Whether it may be in two lines. */
    bool straddles() const;
};

/* What the pass knows of a function. */
struct Analyses {
    llvm::DominatorTree &dominators;
    llvm::LoopInfo &loops;
    llvm::ScalarEvolution &evolution;
};

/* All checks of a function. Adds instructions before loops, for addresses, but no blocks. */
std::vector<Check> checks_of(llvm::Function &function, const Analyses &known);

} // namespace tiercel

#endif
