/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * graph.h: skewed graphs, as Graph500 and GAP make them: Kronecker (R-MAT) edges between vertices
 * whose numbers are then scrambled.
 * In: how many vertices (a power of two), a seed. Out: edge number n, always the same; or all edges
 * to a vertex.
 * Knows nothing of how a graph is stored.
 */
#ifndef GRAPH_H
#define GRAPH_H

#include "workload.h"

/* Graph500's 57%, 19%, 19%, 5%, in 256ths. */
#define RMAT_A 146
#define RMAT_B 49
#define RMAT_C 49
#define RMAT_D (256 - RMAT_A - RMAT_B - RMAT_C)

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

/* The inverse of scramble: its steps backwards, each of which is its own inverse or has one. */
static inline uint32_t unscramble(uint32_t number, unsigned bits) {
    uint64_t below = (UINT64_C(1) << bits) - 1, v = number;
    uint64_t factor = UINT64_C(0x9e3779b1), inverse = factor;
    for (int newton = 0; newton < 5; newton++) {
        inverse *= 2 - factor * inverse;
    }
    for (int round = 0; round < 2; round++) {
        v ^= v >> (bits / 2 + 1);
        v = (v * inverse) & below;
    }
    return (uint32_t)v;
}

/* What a random byte adds at a level: bit 32 to the source of an edge, bit 0 to its target. A
 * table, because a mispredicted branch costs more than all the rest. */
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

/* The share of all edges that go to vertex `to`, before scrambling. */
static inline double share_to(uint32_t to, unsigned bits) {
    double share = 1.0;
    for (unsigned level = 0; level < bits; level++) {
        share *= (to >> level & 1 ? 1.0 - (RMAT_A + RMAT_C) / 256.0 : (RMAT_A + RMAT_C) / 256.0);
    }
    return share;
}

/* The scrambled source of an edge to vertex `to` (before scrambling): each level is random, given
 * the target's bit. */
static inline uint32_t kronecker_source(uint32_t to, unsigned bits, uint64_t *state) {
    const unsigned thresholds[2] = {256 * RMAT_C / (RMAT_A + RMAT_C),
                                    256 * RMAT_D / (RMAT_B + RMAT_D)};
    uint32_t from = 0;
    for (unsigned level = bits; level > 0;) {
        uint64_t chances = next_random(state);
        unsigned until = level > 8 ? level - 8 : 0;
        for (; level > until; level--) {
            from = from << 1 | ((chances & 255) < thresholds[to >> (level - 1) & 1]);
            chances >>= 8;
        }
    }
    return scramble(from, bits);
}

/* Prefix sums: turns counts (of item i at i + 1) into offsets. */
static inline void add_up(uint64_t *counts, uint64_t items) {
    for (uint64_t i = 0; i < items; i++) {
        counts[i + 1] += counts[i];
    }
}

#endif
