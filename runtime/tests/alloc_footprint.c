/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_footprint.c: a small heap costs little more memory than its objects.
 * In: the preload. Out: a line, or what is resident beyond that. Knows nothing of how it is saved.
 */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KIB ((size_t)1024)
/* The kernel's counts are exact but for some OS pages of each CPU. */
#define INEXACT (512 * KIB)

static size_t resident(void) {
    char text[128] = {0};
    int fd = open("/proc/self/statm", O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    return strtoul(strchr(text, ' '), NULL, 10) * 4 * KIB;
}

static void *filled(size_t bytes) {
    void *p = malloc(bytes);
    CHECK(p);
    return memset(p, 1, bytes);
}

/* The buffers of sqlite3: a little more than an OS page. */
static void wasteful_sizes(void) {
    enum { COUNT = 3000, BYTES = 4368 };
    static void *objects[COUNT];
    size_t before = resident();
    for (int i = 0; i < COUNT; i++)
        objects[i] = filled(BYTES);
    size_t grown = resident() - before, limit = (size_t)COUNT * BYTES * 5 / 4 + INEXACT;
    CHECK(grown < limit);
    for (int i = 0; i < COUNT; i++)
        free(objects[i]);
}

/* A few objects of each size at a time, 1 MiB at most: what is kept is no multiple of it. */
static void *one_at_a_time(void *unused) {
    (void)unused;
    for (int round = 0; round < 3; round++)
        for (size_t bytes = 8 * KIB; bytes <= 256 * KIB; bytes += 4 * KIB) {
            void *several[4];
            for (int i = 0; i < 4; i++)
                several[i] = filled(bytes);
            for (int i = 0; i < 4; i++)
                free(several[i]);
        }
    return NULL;
}

static void many_sizes(void) {
    size_t before = resident();
    one_at_a_time(NULL);
    size_t grown = resident() - before;
    CHECK(grown < 2048 * KIB + INEXACT, "%zu", grown);
}

/* Runs are fresh memory while the memory of dead blocks is still resident. */
static void one_kind_after_the_other(void) {
    enum { COUNT = 16 * 1024, BYTES = 512, RUNS = 24, RUN_BYTES = 300 << 10 };
    static void *slots[COUNT], *runs[RUNS];
    for (int i = 0; i < COUNT; i++)
        slots[i] = filled(BYTES);
    size_t peak = resident();
    for (int i = 0; i < COUNT; i++)
        free(slots[i]);
    for (int i = 0; i < RUNS; i++)
        runs[i] = filled(RUN_BYTES);
    CHECK(resident() < peak + 2048 * KIB + INEXACT, "%zu of %zu", resident(), peak);
    for (int i = 0; i < RUNS; i++)
        free(runs[i]);
    for (int i = 0; i < COUNT; i++)
        slots[i] = filled(BYTES);
    CHECK(resident() < peak + 2048 * KIB + INEXACT, "%zu of %zu", resident(), peak);
    for (int i = 0; i < COUNT; i++)
        free(slots[i]);
}

/* Vectors that grow do not lie so far apart that each has tables of its own. */
static void growth_is_compact(void) {
    enum { COUNT = 16 };
    char *vectors[COUNT], *low = (char *)-1, *high = NULL;
    for (int i = 0; i < COUNT; i++) {
        vectors[i] = malloc(64 * KIB);
        for (size_t bytes = 64 * KIB; bytes <= 512 * KIB; bytes *= 2)
            CHECK((vectors[i] = realloc(vectors[i], bytes)));
        low = vectors[i] < low ? vectors[i] : low;
        high = vectors[i] > high ? vectors[i] : high;
    }
    CHECK((size_t)(high - low) < 64 * KIB * KIB, "%zu", (size_t)(high - low));
    for (int i = 0; i < COUNT; i++)
        free(vectors[i]);
}

int main(void) {
    many_sizes(); /* first, with no memory to use again */
    growth_is_compact();
    one_kind_after_the_other();
    wasteful_sizes();
    printf("alloc_footprint: small heaps stay small\n");
    return 0;
}
