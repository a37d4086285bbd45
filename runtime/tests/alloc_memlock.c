/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_memlock.c: mlockall and mlock lock and fill what the program has, not what is reserved.
 * In: the preloaded library. Out: one line, 0. Knows nothing of how memory is reserved.
 *
 * Without the right to lock 256 MiB there is nothing to test.
 */
#include "check.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define MIB ((size_t)1 << 20)

/* Figures of /proc/self/status in KiB. */
static long status_kib(const char *name) {
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file);
    while (fgets(line, sizeof(line), file))
        if (!strncmp(line, name, strlen(name)))
            kib = strtol(line + strlen(name) + 1, NULL, 10);
    fclose(file);
    CHECK(kib >= 0, "%s", name);
    return kib;
}

/* OS pages of `at` that are resident. */
static size_t resident(void *at, size_t bytes) {
    unsigned char in_core[bytes / 4096];
    uintptr_t start = ((uintptr_t)at + 4095) & ~(uintptr_t)4095;
    size_t pages = bytes / 4096 - 1, count = 0;
    CHECK(!mincore((void *)start, pages * 4096, in_core));
    for (size_t i = 0; i < pages; i++)
        count += in_core[i] & 1;
    return count;
}

static void current(void) {
    char *untouched = malloc(16 * MIB);
    long rss = status_kib("VmRSS");
    CHECK(!mlockall(MCL_CURRENT));
    CHECK(resident(untouched, 16 * MIB) == 16 * MIB / 4096 - 1, "what malloc returned is filled");
    long grown = status_kib("VmRSS") - rss, locked = status_kib("VmLck");
    CHECK(grown < 64 * 1024, "%ld KiB more are resident", grown);
    CHECK(locked >= 16 * 1024, "%ld KiB are locked", locked);
    CHECK(!munlockall());
    CHECK(status_kib("VmLck") == 0);
    free(untouched);
}

static void future(void) {
    CHECK(!mlockall(MCL_FUTURE));
    long locked = status_kib("VmLck");
    char *mapped = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    CHECK(resident(mapped, 8 * MIB) == 8 * MIB / 4096 - 1, "the kernel fills new mappings");
    enum { COUNT = 16 };
    char *many[COUNT];
    for (int i = 0; i < COUNT; i++) {
        many[i] = malloc(8 * MIB);
        memset(many[i], 1, 8 * MIB);
    }
    long grown = status_kib("VmLck") - locked;
    CHECK(grown >= (COUNT + 1) * 8 * 1024, "%ld KiB more are locked", grown);
    for (int i = 0; i < COUNT; i++)
        free(many[i]);
    fork_once();
    CHECK(!munlockall());
    munmap(mapped, 8 * MIB);
}

/* As some databases do. */
static void each_mapping(void) {
    long rss = status_kib("VmRSS");
    char line[512], rights[5];
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file);
    unsigned long start, end;
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3 && rights[0] == 'r')
            mlock((void *)start, end - start);
    fclose(file);
    /* The heap has opened memory ahead of need, which this locks as well. */
    long grown = status_kib("VmRSS") - rss;
    CHECK(grown < 256 * 1024, "%ld KiB more are resident", grown);
    CHECK(!munlockall());
}

/* Whether the process may lock as much as this test does: by its limit or a capability. */
static int may_lock(size_t bytes) {
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_MEMLOCK, &limit); /* fails without the right to; then what there is counts */
    void *at = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    int is_locked = mlock2(at, bytes, MLOCK_ONFAULT) == 0;
    munmap(at, bytes);
    return is_locked;
}

int main(void) {
    if (!may_lock(256 * MIB)) {
        puts("alloc_memlock: no right to lock memory; not tested");
        return 0;
    }
    current();
    future();
    each_mapping();
    puts("alloc_memlock: what the program has is locked, and no more is filled");
    return 0;
}
