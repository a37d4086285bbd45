/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * pattern.cpp: see pattern.h.
 */
#include "pattern.h"
#include "../../include/tiercel_probe.h"
#include <llvm/ADT/DenseMap.h>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/IR/Instructions.h>

using namespace llvm;

namespace tiercel {
namespace {

/* Values that a search may visit. Chosen, not measured: it bounds the time to compile. */
constexpr unsigned VisitsMax = 64;

/* Looks for a value that is loaded from an address that depends on itself: what a loop follows. */
class Chase {
  public:
    bool finds(const Value *value) { return leads_back(value, 0); }

  private:
    unsigned visits = VisitsMax;
    DenseMap<const PHINode *, unsigned> open; /* on the way here: loads before each */

    bool leads_back(const Value *value, unsigned loads) {
        if (!visits || !visits--)
            return false;
        if (auto *phi = dyn_cast<PHINode>(value))
            return circle(*phi, loads);
        if (auto *load = dyn_cast<LoadInst>(value))
            return leads_back(load->getPointerOperand(), loads + 1);
        if (isa<GetElementPtrInst, CastInst, SelectInst, BinaryOperator, FreezeInst>(value))
            return any_leads_back(cast<Instruction>(value)->operands(), loads);
        return false;
    }

    template <typename Values> bool any_leads_back(Values &&values, unsigned loads) {
        return any_of(values, [&](const Value *value) { return leads_back(value, loads); });
    }

    bool circle(const PHINode &phi, unsigned loads) {
        auto [at, is_new] = open.try_emplace(&phi, loads);
        if (!is_new)
            return loads > at->second;
        bool found = any_leads_back(phi.incoming_values(), loads);
        open.erase(&phi);
        return found;
    }
};

/* The constant step of the innermost loop in which the address changes; null: there is none. */
const SCEV *step_of(const Check &check, const Analyses &known) {
    Loop *loop = known.loops.getLoopFor(check.first.at->getParent());
    while (loop && known.evolution.isLoopInvariant(check.address, loop))
        loop = loop->getParentLoop();
    auto *moving = dyn_cast<SCEVAddRecExpr>(check.address);
    if (!moving || moving->getLoop() != loop || !moving->isAffine())
        return nullptr;
    return moving->getStepRecurrence(known.evolution);
}

/* Whether `count` checks that move by this step touch each line on the way. */
bool is_dense(const SCEV *step, size_t count) {
    auto *bytes = dyn_cast<SCEVConstant>(step);
    return bytes && bytes->getAPInt().abs().ule(count * LineBytes);
}

} // namespace

void find_patterns(std::vector<Check> &checks, const Analyses &known) {
    using Way = std::pair<const SCEV *, const SCEV *>;
    DenseMap<Way, size_t> alike;
    std::vector<Way> ways;
    for (const Check &check : checks) {
        const SCEV *step = check.address ? step_of(check, known) : nullptr;
        const SCEV *base = step ? known.evolution.getPointerBase(check.address) : nullptr;
        ways.push_back({base, step});
        if (step)
            alike[ways.back()]++;
    }
    for (size_t n = 0; n < checks.size(); n++) {
        Check &check = checks[n];
        if (ways[n].second)
            check.pattern = is_dense(ways[n].second, alike[ways[n]]) ? TIERCEL_PROBE_SEQUENTIAL
                                                                     : TIERCEL_PROBE_STRIDED;
        else if (check.first.length || check.span() > LineBytes)
            check.pattern = TIERCEL_PROBE_SEQUENTIAL;
        else if (Chase().finds(check.first.pointer))
            check.pattern = TIERCEL_PROBE_CHASED;
    }
}

} // namespace tiercel
