/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * graph.h: skewed graphs, as Graph500 and GAP make them: Kronecker (R-MAT) edges between vertices
 * whose numbers are then scrambled.
 * In: how many vertices (a power of two), a seed. Out: edge number n, always the same.
 * Knows nothing of how a graph is kept.
 */
#ifndef GRAPH_H
#define GRAPH_H

#include "workload.h"

/* Graph500's 57%, 19%, 19%, 5%, in 256ths. */
#define RMAT_A 146
#define RMAT_B 49
#define RMAT_C 49

struct edge {
    uint32_t from;
    uint32_t to;
};

/* A vertex's number after scrambling: two rounds of odd multiplication and shift, one to one. */
static inline uint32_t scramble(uint32_t vertex, unsigned bits) {
    uint64_t below = (UINT64_C(1) << bits) - 1, v = vertex;
    for (int round = 0; round < 2; round++) {
        v = (v * UINT64_C(0x9e3779b1)) & below;
        v ^= v >> (bits / 2 + 1);
    }
    return (uint32_t)v;
}

/* What a chance of 256 adds at a level: bit 32 to where an edge comes from, bit 0 to where it
 * goes. A table, because a branch by chance costs more than all the rest. */
static uint64_t level_bits[256];

static inline void fill_level_bits(void) {
    for (unsigned chance = 0; chance < 256; chance++) {
        bool from = chance >= RMAT_A + RMAT_B;
        bool to = from ? chance >= RMAT_A + RMAT_B + RMAT_C : chance >= RMAT_A;
        level_bits[chance] = (uint64_t)from << 32 | to;
    }
}

/* Edge number `n` of a graph of 2^bits vertices; each random number serves eight levels.
 * fill_level_bits comes first. */
static inline struct edge kronecker_edge(uint64_t n, unsigned bits, uint64_t seed) {
    uint64_t state = seeded(seed, n), ends = 0;
    for (unsigned level = 0; level < bits;) {
        uint64_t chances = next_random(&state);
        unsigned until = level + 8 < bits ? level + 8 : bits;
        for (; level < until; level++) {
            ends = ends << 1 | level_bits[chances & 255];
            chances >>= 8;
        }
    }
    return (struct edge){scramble((uint32_t)(ends >> 32), bits), scramble((uint32_t)ends, bits)};
}

/* Turns counts (of item i at i + 1) into beginnings. */
static inline void add_up(uint64_t *counts, uint64_t items) {
    for (uint64_t i = 0; i < items; i++) {
        counts[i + 1] += counts[i];
    }
}

#endif
