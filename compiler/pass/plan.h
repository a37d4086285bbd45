/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * plan.h: what a plan states about code.
 * In: the file that TIERCEL_PLAN names, which `tiercel cc` has checked; debug locations. Out: the
 * phases of marks, the temperatures of births. Knows nothing of how they are applied.
 */
#ifndef TIERCEL_PASS_PLAN_H
#define TIERCEL_PASS_PLAN_H

#include <llvm/ADT/StringMap.h>
#include <llvm/ADT/StringSet.h>
#include <llvm/IR/DebugLoc.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/Error.h>
#include <string>
#include <vector>

namespace tiercel {

/* Those of enum tiercel_temperature, and that contexts disagree. */
enum class Temperature { Unknown = 0, Hot = 1, Cold = 2, Ambiguous = 3 };

/* A function's name without namespace, template arguments and parameters: compilers and debuggers
 * write those differently. */
std::string simple_name(llvm::StringRef name);

/* Where an instruction is, `function file:line`, from the innermost function that was inlined to
 * the one that it is in. Empty where a line is not known. */
std::vector<std::string> places_of(const llvm::DebugLoc &at);

class Plan {
  public:
    static llvm::Expected<Plan> read(llvm::StringRef path);

    /* That of this process, read once; null, and an error of the module's, where it cannot be. */
    static const Plan *of_process(llvm::Module &module);

    bool has_phase(llvm::StringRef name) const { return phases.contains(name); }
    /* Of small objects that are born at these places (places_of); which of them the plan knows. */
    Temperature of(const std::vector<std::string> &places, std::string &known) const;

  private:
    llvm::StringSet<> phases;
    /* By the place that labels a site: the innermost that is in no wrapper of malloc, in a function
     * that was inlined or not. */
    llvm::StringMap<Temperature> births;

    void add(llvm::StringRef label, Temperature temperature);
};

} // namespace tiercel

#endif
