/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * chain.h: chains of dependent loads: cache lines, each of which points to the next.
 * In: memory for the lines, a random state. Out: one random cycle through all of them.
 * Knows nothing of how a chain is traversed.
 */
#ifndef CHAIN_H
#define CHAIN_H

#include "workload.h"

#define LINE_BYTES 64 /* a cache line of x86-64 and most arm64 */

/* One cache line; only its first word is read. */
struct line {
    union {
        struct line *next;
        uint64_t value;
    };
    char padding[LINE_BYTES - sizeof(uint64_t)];
};

SITE uint32_t *make_order(uint64_t bytes) {
    return must_alloc(bytes);
}

/* A single cycle through all lines, by Sattolo's shuffle of their order. */
static void fill_chain(struct line *chain, uint64_t lines, uint64_t *state) {
    uint32_t *order = make_order(lines * sizeof *order);
    for (uint64_t i = 0; i < lines; i++) {
        order[i] = (uint32_t)i;
    }
    for (uint64_t i = lines - 1; i > 0; i--) {
        uint64_t j = random_below(state, i);
        uint32_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (uint64_t i = 0; i < lines; i++) {
        chain[order[i]].next = &chain[order[(i + 1) % lines]];
    }
    give_back(order, lines * sizeof *order);
}

#endif
