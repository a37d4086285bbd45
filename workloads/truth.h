/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * truth.h: what the patterns of truth.c share.
 * In: a seed, a time. Out: sites with their counted accesses, random accesses, lines of truth.
 * Knows nothing of patterns.
 */
#ifndef TRUTH_H
#define TRUTH_H

#include "workload.h"
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE 64u /* bytes of a cache line */
/* Accesses between two looks at the clock: some microseconds. */
#define BATCH 1024u
#define TURN_NS (10 * UINT64_C(1000000)) /* a turn of 10 ms, as the daemon's looks are apart */

/* What is true of a site. */
struct site {
    const char *name;
    uint64_t bytes;
    _Atomic uint64_t accesses;
};

/* A program; held out ones are never looked at while a sampler is made better: what it says of them
 * is what it says of a program that it does not know. */
struct pattern {
    const char *name;
    void (*run)(void);
    bool is_held_out;
};

/* Those of truth_more.c. */
extern const struct pattern more_patterns[];
extern const size_t more_patterns_count;

extern uint64_t seed, until_ns;

/* The state of a stream of random numbers. */
static inline uint64_t stream(uint64_t number) {
    return seeded(seed, number);
}

/* `count` accesses to random lines of a range, each an addition. */
static inline void access_some(struct site *site, char *start, uint64_t bytes, uint64_t count,
                               uint64_t *state) {
    for (uint64_t i = 0; i < count; i++)
        *(volatile uint64_t *)(start + next_random(state) % (bytes / LINE) * LINE) += i;
    atomic_fetch_add_explicit(&site->accesses, count, memory_order_relaxed);
}

/* The same until a time. */
static inline void access_until(struct site *site, char *start, uint64_t bytes, uint64_t end_ns,
                                uint64_t *state) {
    while (now_ns() < end_ns)
        access_some(site, start, bytes, BATCH, state);
}

/* Accesses each line once, so that the range has memory; the range. */
static inline char *filled(struct site *site, char *start, uint64_t bytes) {
    memset(start, 1, bytes);
    atomic_fetch_add_explicit(&site->accesses, bytes / LINE, memory_order_relaxed);
    return start;
}

/* Computes until a time, and accesses nothing. */
static inline void idle_until(uint64_t end_ns) {
    while (now_ns() < end_ns)
        ;
}

static inline uint64_t sooner(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline void say(const struct site *sites, size_t count) {
    for (size_t i = 0; i < count; i++)
        printf("truth %s %" PRIu64 " %" PRIu64 "\n", sites[i].name, sites[i].accesses,
               sites[i].bytes);
}

#define SITES(...) static struct site sites[] = {__VA_ARGS__}
#define SAY() say(sites, sizeof(sites) / sizeof(*sites))

#define ALLOCATES(name)                                                                            \
    SITE __attribute__((unused)) char *name(uint64_t bytes) {                                      \
        char *memory = malloc(bytes);                                                              \
        if (!memory)                                                                               \
            exit(3);                                                                               \
        return memory;                                                                             \
    }
ALLOCATES(hot)
ALLOCATES(cold)
ALLOCATES(warm)
ALLOCATES(cool)

#endif
