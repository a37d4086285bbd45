/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * moving: one large object with a hot window that moves through it, which extents are for.
 * In: sizes, steps. Out: one line; right when the object accounts for every access.
 * Knows nothing of tiers.
 */
#include "workload.h"

enum { TOTAL_MIB, WINDOW_MIB, STEPS, ACCESSES, SHOW, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 512, "MiB of the object"},
    [WINDOW_MIB] = {"window", 64, "MiB of the hot window"},
    [STEPS] = {"steps", 8, "how often the window moves on by its own length"},
    [ACCESSES] = {"accesses", 20000000, "accesses a step; every tenth goes anywhere"},
    [SHOW] = {"show", 0, "1: print the window when it has moved"},
    [SEED] = {"seed", 42, "of the accesses"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt a word, which the check must detect"},
};

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    uint64_t words = options[TOTAL_MIB].value * MIB / 8;
    uint64_t window = options[WINDOW_MIB].value * MIB / 8;
    if (window == 0 || window > words || words > UINT32_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    uint64_t *object = memset(must_alloc(words * 8), 0, words * 8);
    uint64_t state = seeded(options[SEED].value, 0), start = region_begin();
    for (uint64_t s = 0; s < options[STEPS].value; s++) {
        uint64_t first = s * window % (words - window + 1);
        if (options[SHOW].value) {
            show_range("hot", object + first, window * 8);
        }
        for (uint64_t n = 0; n < options[ACCESSES].value; n++) {
            uint64_t at =
                n % 10 == 0 ? random_below(&state, words) : first + random_below(&state, window);
            object[at]++;
        }
    }
    uint64_t took = region_end(start), total = 0;
    object[words / 2] += options[CORRUPT].value;
    for (uint64_t w = 0; w < words; w++) {
        total += object[w];
    }
    free(object);
    uint64_t accesses = options[STEPS].value * options[ACCESSES].value;
    return finish("moving", total == accesses, accesses, took);
}
