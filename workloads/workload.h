/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * workload.h: what the workloads share.
 * In: arguments `name=value`. Out: their values, counted memory, pseudo-random numbers, the time,
 * phases, the result line.
 * Knows nothing of what a workload does with memory.
 */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "roi.h"

#define MIB (UINT64_C(1) << 20)

/* A function that allocates one kind of object; as a site it appears under its own name. */
#define SITE __attribute__((noinline)) static

/* An argument of a workload: its name, its default value and its meaning. */
struct option {
    const char *name;
    uint64_t value;
    const char *help;
};

/* An argument that is a word: its name, its default and its meaning. */
struct text_option {
    const char *name;
    const char *value;
    const char *help;
};

/* The arguments that every workload has besides its own. */
enum { JSON, PIN, COMMON };
static struct option common_options[] = {
    [JSON] = {"json", 0, "1: a line of JSON as well"},
    [PIN] = {"pin", 0, "1: each thread of a team stays on a CPU, in turns"},
};

static inline void show_options(const struct option *options, size_t count) {
    for (size_t i = 0; i < count; i++) {
        fprintf(stderr, "  %-10s %s (%" PRIu64 ")\n", options[i].name, options[i].help,
                options[i].value);
    }
}

static inline void usage_all(const char *program, const struct option *options, size_t count,
                             const struct text_option *texts, size_t text_count) {
    fprintf(stderr, "usage: %s [name=value ...]\n", program);
    show_options(options, count);
    for (size_t i = 0; i < text_count; i++) {
        fprintf(stderr, "  %-10s %s (%s)\n", texts[i].name, texts[i].help, texts[i].value);
    }
    show_options(common_options, COMMON);
    exit(2);
}

static inline void usage(const char *program, const struct option *options, size_t count) {
    usage_all(program, options, count, NULL, 0);
}

/* A whole number with an optional k, m or g (10^3, 10^6, 10^9). */
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

/* What follows `name=` in an argument; NULL: it is another one. */
static inline const char *text_of(const char *argument, const char *name) {
    size_t length = strlen(name);
    bool is_it = !strncmp(argument, name, length) && argument[length] == '=';
    return is_it ? argument + length + 1 : NULL;
}

static inline bool read_number(const char *argument, struct option *options, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const char *value = text_of(argument, options[i].name);
        if (value != NULL) {
            return number(value, &options[i].value);
        }
    }
    return false;
}

static inline bool read_text(const char *argument, struct text_option *texts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const char *value = text_of(argument, texts[i].name);
        if (value != NULL) {
            texts[i].value = value;
            return true;
        }
    }
    return false;
}

/* Fills options from the command line; an unknown argument ends the program with the usage. */
static inline void read_all_options(int argc, char **argv, struct option *options, size_t count,
                                    struct text_option *texts, size_t text_count) {
    for (int a = 1; a < argc; a++) {
        if (!read_number(argv[a], options, count) && !read_text(argv[a], texts, text_count) &&
            !read_number(argv[a], common_options, COMMON)) {
            fprintf(stderr, "%s: cannot use %s\n", argv[0], argv[a]);
            usage_all(argv[0], options, count, texts, text_count);
        }
    }
}

/* The same for a workload without words. */
static inline void read_options(int argc, char **argv, struct option *options, size_t count) {
    read_all_options(argc, argv, options, count, NULL, 0);
}

/* xorshift64*: deterministic, and far cheaper than the memory accesses it chooses. */
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

/* At least 0 and below 1. */
static inline double random_unit(uint64_t *state) {
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

/* A hash of a number: the finalizer of splitmix64. */
static inline uint64_t mix(uint64_t value) {
    value += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

/* An initial state for next_random: never zero, unrelated to that of another seed or stream. */
static inline uint64_t seeded(uint64_t seed, uint64_t stream) {
    return mix(seed * UINT64_C(0x100000001b3) + stream) | 1;
}

/* The bit pattern of a number, for digests. */
static inline uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Begins the region of interest. Pass the result to region_end, which returns the time between, in
 * nanoseconds. */
static inline uint64_t region_begin(void) {
    ROI_BEGIN();
    return now_ns();
}

static inline uint64_t region_end(uint64_t begun_ns) {
    uint64_t took = now_ns() - begun_ns;
    ROI_END();
    return took;
}

/* Bytes from must_alloc and must_map that are not given back yet, and their maximum so far. */
static _Atomic uint64_t bytes_held, bytes_held_max;

static inline void hold(uint64_t bytes) {
    uint64_t held = atomic_fetch_add(&bytes_held, bytes) + bytes;
    uint64_t most = atomic_load(&bytes_held_max);
    while (held > most && !atomic_compare_exchange_weak(&bytes_held_max, &most, held)) {
    }
}

/* Inlined, so that each SITE function calls malloc itself and is a site of its own. */
#define INLINED __attribute__((always_inline)) static inline

INLINED void *must_have(void *memory, size_t bytes) {
    if (memory == NULL || memory == MAP_FAILED) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        exit(3);
    }
    hold(bytes);
    return memory;
}

INLINED void *must_alloc(size_t bytes) {
    return must_have(malloc(bytes), bytes);
}

/* Frees memory of must_alloc; `bytes` as in that call. */
static inline void give_back(void *memory, size_t bytes) {
    free(memory);
    atomic_fetch_sub(&bytes_held, bytes);
}

/* Private anonymous memory from the kernel. A macro, so that the calling function is the site. */
#define must_map(bytes)                                                                            \
    must_have(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), bytes)

static inline void unmap(void *memory, size_t bytes) {
    munmap(memory, bytes);
    atomic_fetch_sub(&bytes_held, bytes);
}

/* Reports that a phase begins, by tiercel_phase if the runtime is loaded. Without it the call costs
 * next to nothing: the function is looked up once. */
static inline void enter_phase(const char *name) {
    static void (*listener)(const char *);
    static bool sought;
    if (!sought) {
        void *found = dlsym(RTLD_DEFAULT, "tiercel_phase");
        memcpy(&listener, &found, sizeof listener);
        sought = true;
    }
    if (listener != NULL) {
        listener(name);
    }
}

/* Prints a range for tests that check its residency. */
static inline void show_range(const char *what, const void *memory, size_t bytes) {
    printf("range %s %p %zu\n", what, memory, bytes);
    fflush(stdout);
}

/* Peak memory; for a workload that does not count its own, peak resident memory. */
static inline uint64_t peak_bytes(void) {
    struct rusage usage;
    uint64_t counted = atomic_load(&bytes_held_max);
    return counted || getrusage(RUSAGE_SELF, &usage) ? counted : (uint64_t)usage.ru_maxrss * 1024;
}

/* The result of a workload. */
struct outcome {
    const char *name;
    /* The kind of operation, in the plural. */
    const char *unit;
    uint64_t operations;
    /* Time in the region of interest. */
    uint64_t took_ns;
    /* A hash of the result: the same for the same arguments, wherever the memory is. */
    uint64_t digest;
    /* Whether the workload's own check holds. */
    bool right;
};

/* Prints the result line; returns the exit status, 0 when the workload's own check holds. */
static inline int conclude(const struct outcome *out) {
    double took_ns = (double)out->took_ns, operations = (double)out->operations;
    uint64_t footprint = peak_bytes();
    printf("%s: %s, %" PRIu64 " %s, %.2f ns each, %.3f M/s, %.3f s, %.1f MiB, digest %016" PRIx64
           "\n",
           out->name, out->right ? "right" : "WRONG", out->operations, out->unit,
           out->operations ? took_ns / operations : 0.0,
           out->took_ns ? operations / took_ns * 1e3 : 0.0, took_ns / 1e9,
           (double)footprint / (double)MIB, out->digest);
    if (common_options[JSON].value) {
        printf("{\"workload\":\"%s\",\"right\":%s,\"unit\":\"%s\",\"operations\":%" PRIu64
               ",\"region_ns\":%" PRIu64 ",\"footprint_bytes\":%" PRIu64 ",\"digest\":\"%016" PRIx64
               "\"}\n",
               out->name, out->right ? "true" : "false", out->unit, out->operations, out->took_ns,
               footprint, out->digest);
    }
    return out->right ? 0 : 1;
}

/* The same for a workload of single accesses whose only result is that its check holds. */
static inline int finish(const char *name, bool right, uint64_t accesses, uint64_t took_ns) {
    struct outcome out = {name, "accesses", accesses, took_ns, right, right};
    return conclude(&out);
}

#endif
