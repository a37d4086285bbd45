/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * pattern.h: in what order an access goes through memory.
 * In: a function's checks, before loops move them. Out: their patterns (include/tiercel_probe.h).
 * Knows nothing of what runs: only what the code shows.
 *
 *   sequential   by at most a line an iteration; by more, where the checks of the block that move
 *                alike cover it together (a loop that was unrolled)
 *   strided      by a constant of the loop
 *   chased       to where what was loaded an iteration ago says
 *   random       anything else
 */
#ifndef TIERCEL_PASS_PATTERN_H
#define TIERCEL_PASS_PATTERN_H

#include "groups.h"

namespace tiercel {

/* Sets `pattern` of each; `checks` are those of one block. */
void find_patterns(std::vector<Check> &checks, const Analyses &known);

} // namespace tiercel

#endif
