/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * groups.cpp: see groups.h.
 */
#include "groups.h"
#include "pattern.h"
#include <cstdlib>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/MathExtras.h>
#include <llvm/Transforms/Utils/ScalarEvolutionExpander.h>

using namespace llvm;

namespace tiercel {
namespace {

/* Open groups of a block that an access is compared with. Chosen, not measured: it bounds the time
 * to compile long blocks. */
constexpr size_t OpenMax = 16;

bool can_merge(const Access &access) {
    return !access.length && !access.lane_on && access.bytes <= LineBytes;
}

/* The groups of one block. */
class Block {
  public:
    Block(ScalarEvolution &evolution, std::vector<Check> &out) : evolution(evolution), out(out) {}

    void take(const Access &access) {
        Check fresh;
        fresh.first = access;
        fresh.high = static_cast<int64_t>(access.bytes);
        fresh.align = access.align;
        fresh.dirties = access.writes;
        fresh.where = access.at->getDebugLoc();
        if (!can_merge(access))
            return out.push_back(fresh);
        fresh.address = evolution.getSCEV(access.pointer);
        for (size_t n = out.size(); n > open && n + OpenMax > out.size(); n--)
            if (join(out[n - 1], fresh))
                return;
        out.push_back(fresh);
    }

    void close() { open = out.size(); }

  private:
    ScalarEvolution &evolution;
    std::vector<Check> &out;
    size_t open = 0;

    bool join(Check &group, const Check &fresh) {
        if (!group.address ||
            evolution.getPointerBase(group.address) != evolution.getPointerBase(fresh.address))
            return false;
        auto *apart = dyn_cast<SCEVConstant>(evolution.getMinusSCEV(fresh.address, group.address));
        if (!apart || apart->getAPInt().getSignificantBits() > 32)
            return false;
        int64_t at = apart->getAPInt().getSExtValue();
        int64_t low = std::min(group.low, at), high = std::max(group.high, at + fresh.high);
        if (high - low > static_cast<int64_t>(LineBytes))
            return false;
        auto moved = [low](Align align, int64_t from) {
            return commonAlignment(align, static_cast<uint64_t>(from - low));
        };
        group.align = std::max(moved(group.align, group.low), moved(fresh.align, at));
        group.low = low;
        group.high = high;
        group.dirties |= fresh.dirties;
        return true;
    }
};

/* What loops make of checks in them. */
class Loops {
  public:
    Loops(Function &function, const Analyses &known)
        : known(known),
          expander(known.evolution, function.getParent()->getDataLayout(), "tiercel") {}

    /* Changes a check, or moves it before its loop. `before`: what must stand there beside it. */
    void hoist(Check &check, std::vector<Check> &before) {
        Loop *loop = known.loops.getLoopFor(check.first.at->getParent());
        while (loop && check.address && is_simple(*loop) && always_runs(check, *loop)) {
            if (!known.evolution.isLoopInvariant(check.address, loop))
                return step_by_lines(check, *loop, before);
            if (!move_before(check, check.address, *loop))
                return;
            loop = loop->getParentLoop();
        }
    }

  private:
    const Analyses &known;
    SCEVExpander expander;

    void step_by_lines(Check &check, Loop &loop, std::vector<Check> &before) {
        auto *moving = dyn_cast<SCEVAddRecExpr>(check.address);
        if (!moving || moving->getLoop() != &loop || !moving->isAffine())
            return;
        auto *step = dyn_cast<SCEVConstant>(moving->getStepRecurrence(known.evolution));
        if (!step || step->getAPInt().abs().ugt(LineBytes))
            return;
        Check first = check;
        if (!move_before(first, moving->getStart(), loop))
            return;
        check.step = step->getAPInt().getSExtValue();
        hoist(first, before);
        before.push_back(first);
    }

    static bool is_simple(Loop &loop) { return loop.getLoopPreheader() && loop.getLoopLatch(); }

    /* Whether each iteration that begins comes to the check. */
    bool always_runs(const Check &check, Loop &loop) {
        BasicBlock *block = check.first.at->getParent();
        SmallVector<BasicBlock *> ends;
        loop.getExitingBlocks(ends);
        ends.push_back(loop.getLoopLatch());
        auto is_before = [&](BasicBlock *end) { return known.dominators.dominates(block, end); };
        return all_of(ends, is_before);
    }

    bool move_before(Check &check, const SCEV *address, Loop &loop) {
        Instruction *at = loop.getLoopPreheader()->getTerminator();
        if (!expander.isSafeToExpandAt(address, at))
            return false;
        check.first.pointer = expander.expandCodeFor(address, check.first.pointer->getType(), at);
        check.first.at = at;
        check.address = address;
        return true;
    }
};

void group_block(BasicBlock &block, const Analyses &known, std::vector<Check> &out) {
    std::vector<Access> accesses = accesses_of(block);
    if (accesses.empty())
        return;
    std::vector<Check> checks;
    Block groups(known.evolution, checks);
    auto next = accesses.begin();
    for (Instruction &at : block) {
        for (; next != accesses.end() && next->at == &at; ++next)
            groups.take(*next);
        if (is_barrier(at))
            groups.close();
    }
    find_patterns(checks, known);
    out.insert(out.end(), checks.begin(), checks.end());
}

} // namespace

bool Check::straddles() const {
    return align.value() < PowerOf2Ceil(span());
}

std::vector<Check> checks_of(Function &function, const Analyses &known) {
    std::vector<Check> found, checks;
    for (BasicBlock &block : function)
        group_block(block, known, found);
    Loops loops(function, known);
    for (Check &check : found) {
        loops.hoist(check, checks);
        checks.push_back(check);
    }
    return checks;
}

} // namespace tiercel
