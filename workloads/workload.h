/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * workload.h: what the workloads share.
 * In: arguments `name=value`. Out: their values, pseudo-random numbers, the time, the closing line.
 * Knows nothing of what a workload does with memory.
 */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (UINT64_C(1) << 20)

/* One argument a workload knows, its value when not given, and what it means. */
struct option {
    const char *name;
    uint64_t value;
    const char *help;
};

static inline void usage(const char *program, const struct option *options, size_t count) {
    fprintf(stderr, "usage: %s [name=value ...]\n", program);
    for (size_t i = 0; i < count; i++) {
        fprintf(stderr, "  %-9s %s (%" PRIu64 ")\n", options[i].name, options[i].help,
                options[i].value);
    }
    exit(2);
}

/* A whole number with an optional k, m or g (thousands, millions, milliards). */
static inline bool number(const char *text, uint64_t *value) {
    char *end;
    *value = strtoull(text, &end, 10);
    if (end == text) {
        return false;
    }
    uint64_t scale = *end == 'k' ? 1000 : *end == 'm' ? 1000000 : *end == 'g' ? 1000000000 : 1;
    *value *= scale;
    return end[scale != 1] == 0;
}

/* Fills `options` from the command line; what nobody knows ends the program with the usage. */
static inline void read_options(int argc, char **argv, struct option *options, size_t count) {
    for (int a = 1; a < argc; a++) {
        const char *equals = strchr(argv[a], '=');
        bool known = false;
        for (size_t i = 0; equals != NULL && i < count; i++) {
            size_t length = (size_t)(equals - argv[a]);
            if (strlen(options[i].name) == length && !strncmp(argv[a], options[i].name, length)) {
                known = number(equals + 1, &options[i].value);
            }
        }
        if (!known) {
            fprintf(stderr, "%s: cannot use %s\n", argv[0], argv[a]);
            usage(argv[0], options, count);
        }
    }
}

/* xorshift64*: deterministic, and far cheaper than the accesses it chooses. */
static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}

/* Below `bound`, which is less than 2^32; no division. */
static inline uint64_t random_below(uint64_t *state, uint64_t bound) {
    return (next_random(state) >> 32) * bound >> 32;
}

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline void *must_alloc(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        exit(3);
    }
    return memory;
}

/* For tests that look where the kernel put it: which memory deserves to be fast. */
static inline void show_range(const char *what, const void *memory, size_t bytes) {
    printf("range %s %p %zu\n", what, memory, bytes);
    fflush(stdout);
}

/* The closing line, and the exit status: 0 when the workload's own check holds. */
static inline int finish(const char *name, bool right, uint64_t accesses, uint64_t took_ns) {
    printf("%s: %s, %" PRIu64 " accesses, %.2f ns each\n", name, right ? "right" : "WRONG",
           accesses, accesses ? (double)took_ns / (double)accesses : 0.0);
    return right ? 0 : 1;
}

#endif
