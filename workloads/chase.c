/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * chase: independent chains of dependent loads, each through one object in random order. The time
 * per access is the memory's latency divided by the number of chains.
 * In: size, chains. Out: one line; right when every chain returns to its start.
 * Knows nothing of tiers.
 */
#include "chain.h"

enum { KIB, CHAINS, ROUNDS, SHOW, SEED, CORRUPT };

static struct option options[] = {
    [KIB] = {"kib", 65536, "KiB of each chain's object"},
    [CHAINS] = {"chains", 1, "how many chains, 16 at most"},
    [ROUNDS] = {"rounds", 4, "how often each chain is walked"},
    [SHOW] = {"show", 0, "1: print the ranges of the objects"},
    [SEED] = {"seed", 42, "of the order"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt a link, which the check must detect"},
};

#define CHAINS_MAX                                                                                 \
    16 /* chosen: more than a core's line fill buffers, of which most have 10 to 16 */

SITE struct line *make_chain(uint64_t bytes) {
    return must_alloc(bytes);
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    uint64_t links = (options[KIB].value << 10) / LINE_BYTES, chains = options[CHAINS].value;
    if (links < 2 || links > UINT32_MAX || chains == 0 || chains > CHAINS_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    struct line *begin[CHAINS_MAX], *at[CHAINS_MAX];
    uint64_t state = seeded(options[SEED].value, 0);
    for (uint64_t c = 0; c < chains; c++) {
        at[c] = begin[c] = make_chain(links * LINE_BYTES);
        fill_chain(begin[c], links, &state);
        if (options[SHOW].value) {
            show_range("chain", begin[c], links * LINE_BYTES);
        }
    }
    if (options[CORRUPT].value) {
        begin[0][links / 2].next = &begin[0][links / 2];
    }
    uint64_t steps = links * options[ROUNDS].value, start = region_begin();
    for (uint64_t n = 0; n < steps; n++) {
        for (uint64_t c = 0; c < chains; c++) {
            at[c] = at[c]->next;
        }
    }
    uint64_t took = region_end(start);
    bool right = true;
    for (uint64_t c = 0; c < chains; c++) {
        right &= at[c] == begin[c];
        free(begin[c]);
    }
    return finish("chase", right, steps * chains, took);
}
