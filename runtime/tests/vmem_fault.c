/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_fault.c: vregions whose vpages get memory when they are touched: by threads and system
 * calls, while they move, across forks, and where touches cannot be served (any longer).
 *
 * argv: `where`: checks only the node that the memory comes from.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../../include/tiercel.h"
#include "vregion.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define OS_PAGE ((size_t)4096)
#define ABSENT_NODE 900 /* no machine has this node */
#define RW (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)
#define THREADS 4   /* chosen: more than the CPUs of a small machine */
#define CPUS_MAX 64 /* chosen: 4 MiB of address space for each */

static const int shifts[] = {0, 16, 21};

static char *make(size_t bytes, int shift) {
    int flags = PRIVATE | TIERCEL_MAP_USERFAULT | shift << 26;
    char *region = tiercel_vregion_register(NULL, bytes, RW, flags, -1, 0);
    CHECK(region != MAP_FAILED);
    return region;
}

static bool is_untouched(const char *at) {
    return tiercel_vregion_node(at) == -1 && errno == ENOENT;
}

/* KiB of this process that lie in memory. */
static long resident_kib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*d %ld", &pages) == 1 && !fclose(file));
    return pages * 4;
}

static void only_what_is_touched(void) {
    long before = resident_kib();
    char *region = make(1024 * MIB, 0);
    CHECK(is_untouched(region) && is_untouched(region + 1023 * MIB));
    for (size_t at = 5; at < 1024 * MIB; at += 64 * MIB) {
        CHECK(region[at] == 0);
        region[at] = 7;
        CHECK(tiercel_vregion_node(region + at) >= 0 && region[at] == 7);
        char *neighbour = (char *)((uintptr_t)(region + at) ^ OS_PAGE);
        CHECK(neighbour < region || tiercel_vregion_node(neighbour) >= 0);
        CHECK(is_untouched(region + at + MIB));
    }
    CHECK(resident_kib() - before < 8 << 10, "%ld KiB", resident_kib() - before);
    CHECK(!tiercel_vregion_migrate(region, 1024 * MIB, ABSENT_NODE));
    CHECK(tiercel_vregion_node(region) == ABSENT_NODE && region[5] == 7 &&
          is_untouched(region + MIB));
    CHECK(!tiercel_vregion_bind(region, 1024 * MIB, ABSENT_NODE + 1) && region[MIB] == 0);
    CHECK(tiercel_vregion_node(region) == ABSENT_NODE + 1);
    CHECK(tiercel_vregion_node(region + MIB) == ABSENT_NODE + 1);
    CHECK(!tiercel_vregion_release(region, 1024 * MIB));
}

/* Memory comes from the node of the CPU that touches, not of the thread that registers or serves.
 */
static void where_it_is_touched(void) {
    cpu_set_t before, one;
    CHECK(!sched_getaffinity(0, sizeof(before), &before));
    char *region = make(CPUS_MAX * 4 * MIB, 0), *at = region;
    unsigned node, nodes = 0;
    for (int cpu = 0; cpu < CPUS_MAX; cpu++, at += 4 * MIB) {
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (!CPU_ISSET(cpu, &before) || sched_setaffinity(0, sizeof(one), &one))
            continue;
        at[0] = 1;
        CHECK(!syscall(SYS_getcpu, NULL, &node, NULL));
        CHECK(tiercel_vregion_node(at) == (int)node, "cpu %d", cpu);
        nodes = node + 1 > nodes ? node + 1 : nodes;
    }
    printf("touched from %u nodes with CPUs\n", nodes);
    CHECK(!sched_setaffinity(0, sizeof(before), &before));
    CHECK(!tiercel_vregion_release(region, CPUS_MAX * 4 * MIB));
}

struct crowd {
    uint64_t *words;
    size_t count;
    _Atomic unsigned turn;
    _Atomic bool is_over;
};

/* Each thread owns every fourth word, and writes its words in a scattered order. */
static void *touch(void *argument) {
    struct crowd *crowd = argument;
    uint64_t seed = atomic_fetch_add(&crowd->turn, 1), own = seed % THREADS;
    for (size_t i = 0; i < crowd->count / THREADS; i++) {
        size_t at = (i * 40503 + 11) % (crowd->count / THREADS) * THREADS + own;
        CHECK(crowd->words[at] == 0);
        crowd->words[at] = at + 1;
    }
    return NULL;
}

static void *move(void *argument) {
    struct crowd *crowd = argument;
    for (int i = 0; !atomic_load(&crowd->is_over); i++)
        CHECK(!tiercel_vregion_migrate(crowd->words, crowd->count * 8, i % 2 ? 0 : ABSENT_NODE));
    return NULL;
}

static void many_threads(size_t around, unsigned spin_us, int shift) {
    size_t bytes = 16 * MIB;
    struct crowd crowd = {.words = (uint64_t *)make(bytes, shift), .count = bytes / 8};
    pthread_t threads[THREADS], mover;
    CHECK(!tiercel_vregion_faults(around, spin_us));
    CHECK(!pthread_create(&mover, NULL, move, &crowd));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, touch, &crowd));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&crowd.is_over, true);
    pthread_join(mover, NULL);
    for (size_t i = 0; i < crowd.count; i++)
        CHECK(crowd.words[i] == i + 1, "word %zu by %zu bytes", i, around);
    CHECK(!tiercel_vregion_release(crowd.words, bytes));
}

/* System calls touch, too: the buffer of a read. */
static void system_calls_touch(void) {
    char *region = make(4 * MIB, 0), *big = malloc(MIB);
    int fd = memfd_create("source", 0);
    memset(big, 5, MIB);
    CHECK(fd >= 0 && write(fd, big, MIB) == (ssize_t)MIB);
    CHECK(pread(fd, region + MIB + 5, MIB, 0) == (ssize_t)MIB);
    CHECK(region[MIB + 4] == 0 && region[MIB + 5] == 5 && region[2 * MIB + 4] == 5);
    CHECK(!tiercel_vregion_release(region, 4 * MIB) && !close(fd));
    free(big);
}

static void parts_and_rights(void) {
    char *region = make(4 * MIB, 0);
    CHECK(!mprotect(region + MIB, MIB, PROT_READ));
    CHECK(region[MIB + 9] == 0 && tiercel_vregion_node(region + MIB) >= 0);
    CHECK(!mprotect(region + MIB, MIB, RW));
    region[MIB + 9] = 1;
    CHECK(!munmap(region + 2 * MIB, MIB));
    char *other = mmap(region + 2 * MIB, MIB, RW, PRIVATE | MAP_FIXED, -1, 0);
    other[0] = 3;
    region[2 * MIB - 1] = 2, region[3 * MIB] = 4;
    CHECK(other[0] == 3 && region[MIB + 9] == 1 && tiercel_vregion_node(other) == -1);
    CHECK(!tiercel_vregion_release(region, 4 * MIB));
}

/* Memory that the program mapped there by raw system calls is not mapped over. */
static void raw_system_calls(void) {
    char *region = make(MIB, 0), *at = region + 4 * OS_PAGE;
    CHECK(!syscall(SYS_munmap, at, OS_PAGE));
    CHECK(syscall(SYS_mmap, at, OS_PAGE, RW, PRIVATE | MAP_FIXED, -1, 0) == (long)at);
    at[0] = 9;
    region[0] = 1; /* 64 KiB around it would be filled */
    CHECK(at[0] == 9 && region[0] == 1 && region[5 * OS_PAGE] == 0);
    CHECK(!syscall(SYS_munmap, region + 32 * OS_PAGE, 32 * OS_PAGE));
    region[64 * OS_PAGE] = 2;
    CHECK(region[64 * OS_PAGE] == 2 && at[0] == 9);
    CHECK(!tiercel_vregion_release(region, MIB));
}

/* In a child it is private memory, which can be moved. */
static void run_child(char *region) {
    CHECK(region[0] == 1 && region[MIB] == 0 && region[2 * MIB] == 0);
    region[0] = 11, region[MIB] = 12;
    CHECK(!tiercel_vregion_migrate(region, 4 * MIB, ABSENT_NODE));
    CHECK(tiercel_vregion_node(region + MIB) == ABSENT_NODE && region[MIB] == 12 &&
          region[0] == 11);
    CHECK(is_untouched(region + 3 * MIB));
    pid_t grandchild = fork();
    if (grandchild == 0) {
        CHECK(region[0] == 11 && region[MIB] == 12 && region[3 * MIB] == 0);
        char *own = make(MIB, 0);
        CHECK(is_untouched(own) && own[5] == 0 && tiercel_vregion_node(own) >= 0);
        _exit(0);
    }
    expect_success(grandchild);
    CHECK(region[3 * MIB] == 0);
    _exit(0);
}

static void forked(void) {
    char *region = make(4 * MIB, 0);
    region[0] = 1;
    pid_t child = fork();
    if (child == 0)
        run_child(region);
    region[3 * MIB] = 4; /* served while there is a child */
    expect_success(child);
    CHECK(region[0] == 1 && region[MIB] == 0 && region[3 * MIB] == 4);
    CHECK(tiercel_vregion_node(region + MIB) >= 0 && is_untouched(region + 2 * MIB + MIB / 2));
    fork_once();
    region[3 * MIB] = 5;
    CHECK(!tiercel_vregion_migrate(region, 4 * MIB, ABSENT_NODE) && region[3 * MIB] == 5);
    CHECK(!tiercel_vregion_release(region, 4 * MIB));
}

/* A child that ran no fork handler has its touches served, and so has its parent. */
static void cloned(void) {
    char *region = make(4 * MIB, 0);
    region[0] = 1;
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        char *own = make(MIB, 0);
        CHECK(is_untouched(own) && own[5] == 0 && tiercel_vregion_node(own) >= 0);
        own[9] = 2;
        CHECK(own[9] == 2);
        _exit(0);
    }
    expect_success(child);
    region[MIB] = 3;
    CHECK(region[0] == 1 && region[MIB] == 3 && tiercel_vregion_node(region + MIB) >= 0);
    char *again = make(MIB, 0);
    CHECK(is_untouched(again) && again[5] == 0);
    CHECK(!tiercel_vregion_release(region, 4 * MIB) && !tiercel_vregion_release(again, MIB));
}

/* When no place is available at a touch, the kernel serves the rest, which can be moved later. */
static void exhausted(void) {
    char *region = make(256 * MIB, 0);
    struct rlimit before, none;
    region[0] = 1;
    CHECK(!getrlimit(RLIMIT_FSIZE, &before));
    none = (struct rlimit){MIB, before.rlim_max};
    CHECK(!setrlimit(RLIMIT_FSIZE, &none));
    for (size_t at = 0; at < 256 * MIB; at += OS_PAGE)
        region[at] = (char)(at / OS_PAGE);
    CHECK(!setrlimit(RLIMIT_FSIZE, &before));
    CHECK(!tiercel_vregion_migrate(region, 256 * MIB, ABSENT_NODE));
    for (size_t at = 0; at < 256 * MIB; at += OS_PAGE)
        CHECK(region[at] == (char)(at / OS_PAGE));
    CHECK(tiercel_vregion_node(region + 255 * MIB) == ABSENT_NODE);
    CHECK(!tiercel_vregion_release(region, 256 * MIB));
}

static void *touch_later(void *region) {
    usleep(20000);
    *(char *)region = 3;
    return NULL;
}

/* The program closes all descriptors: no thread waits for ever, and new vregions are served again.
 */
static void closed_descriptors(void) {
    char *region = make(4 * MIB, 0);
    pthread_t thread;
    region[0] = 1;
    CHECK(!pthread_create(&thread, NULL, touch_later, region + 2 * MIB));
    CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
    region[MIB] = 2;
    pthread_join(thread, NULL);
    CHECK(region[0] == 1 && region[MIB] == 2 && region[2 * MIB] == 3 && region[3 * MIB] == 0);
    CHECK(!tiercel_vregion_migrate(region, 4 * MIB, ABSENT_NODE));
    CHECK(region[0] == 1 && region[MIB] == 2 && region[2 * MIB] == 3 && region[3 * MIB] == 0);
    char *again = make(MIB, 0);
    CHECK(is_untouched(again) && again[0] == 0 && tiercel_vregion_node(again) >= 0);
    CHECK(!tiercel_vregion_release(region, 4 * MIB) && !tiercel_vregion_release(again, MIB));
}

/* Under a seccomp filter the flag has no effect: memory is taken at registration. */
static void refused(void) {
    pid_t child = fork();
    if (child == 0) {
        install_filter();
        char *region = make(MIB, 0);
        CHECK(tiercel_vregion_node(region) >= 0 && region[0] == 0);
        _exit(0);
    }
    expect_success(child);
}

int main(int count, char **arguments) {
    CHECK(tiercel_vregion_faults(4097, 0) == -1 && errno == EINVAL);
    CHECK(tiercel_vregion_faults(4 * MIB, 0) == -1 && tiercel_vregion_faults(0, 0) == -1);
    CHECK(tiercel_vregion_faults(4096, 2000000) == -1 && errno == EINVAL);
    where_it_is_touched();
    if (count > 1 && !strcmp(arguments[1], "where"))
        return 0;
    only_what_is_touched();
    for (size_t i = 0; i < sizeof(shifts) / sizeof(*shifts); i++) {
        many_threads(OS_PAGE, 0, shifts[i]);
        many_threads(64 << 10, 1000, shifts[i]);
        many_threads(2 * MIB, 50, shifts[i]);
    }
    CHECK(!tiercel_vregion_faults(64 << 10, 50));
    system_calls_touch();
    parts_and_rights();
    raw_system_calls();
    forked();
    cloned();
    exhausted();
    closed_descriptors();
    refused();
    puts("vregions: touches are served near the thread, and by the kernel where that fails");
    return 0;
}
