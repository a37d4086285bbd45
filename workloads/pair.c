/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * pair: two objects of one size, accessed equally often; in one, each access depends on
 * the previous one (a chain in random order); the other is streamed. Their access counts are equal,
 * their costs are not: the chain is bound by latency, the stream by bandwidth.
 * In: size, rounds. Out: one line; right when the chain returns to its start and the stream
 * adds up.
 * Knows nothing of tiers.
 */
#include "chain.h"

enum { TOTAL_MIB, ROUNDS, CHAIN_FIRST, SHOW, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB of both objects together"},
    [ROUNDS] = {"rounds", 4, "how often each object is traversed"},
    [CHAIN_FIRST] = {"chainfirst", 0, "1: the chain is made before the stream"},
    [SHOW] = {"show", 0, "1: print the ranges of the objects"},
    [SEED] = {"seed", 1, "of the chain's order"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt the stream, which the check must detect"},
};

/* Consecutive accesses to one object before those to the other. Chosen, not measured: 256 KiB
 * of lines, so that neither lives on what a cache keeps of the turn before. */
#define TURN 4096

SITE struct line *make_chain(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE struct line *make_stream(uint64_t bytes) {
    return must_alloc(bytes);
}

static void fill_stream(struct line *stream, uint64_t lines) {
    for (uint64_t i = 0; i < lines; i++) {
        stream[i].value = mix(i);
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    uint64_t lines = options[TOTAL_MIB].value * MIB / 2 / LINE_BYTES / TURN * TURN;
    if (lines == 0 || lines > UINT32_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    uint64_t bytes = lines * LINE_BYTES, state = seeded(options[SEED].value, 0);
    struct line *stream = NULL, *chain;
    if (!options[CHAIN_FIRST].value) {
        stream = make_stream(bytes);
        fill_stream(stream, lines);
    }
    chain = make_chain(bytes);
    fill_chain(chain, lines, &state);
    if (stream == NULL) {
        stream = make_stream(bytes);
        fill_stream(stream, lines);
    }
    if (options[SHOW].value) {
        show_range("chain", chain, bytes);
        show_range("stream", stream, bytes);
    }
    if (options[CORRUPT].value) {
        stream[lines / 3].value ^= 1;
    }
    uint64_t rounds = options[ROUNDS].value, sum = 0, expected = 0, begun = region_begin();
    struct line *at = chain;
    for (uint64_t round = 0; round < rounds; round++) {
        for (uint64_t first = 0; first < lines; first += TURN) {
            for (uint64_t i = 0; i < TURN; i++) {
                at = at->next;
            }
            for (uint64_t i = 0; i < TURN; i++) {
                sum += stream[first + i].value;
            }
        }
    }
    uint64_t took = region_end(begun);
    for (uint64_t i = 0; i < lines; i++) {
        expected += mix(i);
    }
    bool right = at == chain && sum == rounds * expected;
    give_back(chain, bytes);
    give_back(stream, bytes);
    struct outcome out = {"pair", "accesses", 2 * rounds * lines, took, sum, right};
    return conclude(&out);
}
