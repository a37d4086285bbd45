/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * bench-vmem.c: what vregions cost, as VMem measures it.
 * In: touch KIND MIB, or move KIND MIB NODE WRITERS. Out: `name value` lines, ns of CPU for 4 KiB;
 * the stall in ns that passed.
 * Knows nothing of who compares.
 *
 * touch (table 2): one pass writes every word of fresh memory, one reads them; kinds are `mmap` and
 * `thp` (the kernel's, with 4 KiB and huge OS pages), `vmem4k`, `vmem64k`, `vmem2m`, and `eager`,
 * which is vmem4k mapped whole at its registration.
 * move (figure 4): migrates all of it to NODE and back, several times, whole; copies ahead and
 * then switches; `kernel` does it by mbind. With WRITERS, threads write one word of an OS page
 * after the other meanwhile. A thread that keeps reading tells the longest it had to wait.
 */
#include "../../include/tiercel.h"
#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 4

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* Of this thread's CPU, which other programs do not lengthen; but for what a thread waits. */
static uint64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t *make(const char *kind, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS, rights = PROT_READ | PROT_WRITE;
    bool is_ours = !strncmp(kind, "vmem", 4) || !strcmp(kind, "eager");
    int huge = !strcmp(kind, "vmem64k") ? 16 << 26 : !strcmp(kind, "vmem2m") ? 21 << 26 : 0;
    huge |= strcmp(kind, "eager") ? 0 : MAP_POPULATE;
    char *at = is_ours ? tiercel_vregion_register(NULL, bytes, rights, flags | huge, -1, 0)
                       : mmap(NULL, bytes + (2 << 20), rights, flags, -1, 0);
    if (at == MAP_FAILED)
        die(kind);
    if (is_ours && tiercel_vregion_node(at) < 0)
        die("no runtime");
    if (!is_ours)
        at = (char *)(((uintptr_t)at + (2 << 20) - 1) & -(uintptr_t)(2 << 20));
    if (!strcmp(kind, "thp"))
        madvise(at, bytes, MADV_HUGEPAGE);
    else if (!is_ours)
        madvise(at, bytes, MADV_NOHUGEPAGE);
    return (uint64_t *)at;
}

static void touch(const char *kind, size_t bytes) {
    uint64_t began = cpu_ns(), seed = 1, sum = 0;
    uint64_t *words = make(kind, bytes);
    uint64_t made = cpu_ns();
    for (size_t i = 0; i < bytes / 8; i++)
        words[i] = seed = seed * 6364136223846793005u + 1442695040888963407u;
    uint64_t written = cpu_ns();
    for (size_t i = 0; i < bytes / 8; i++)
        sum += ((volatile uint64_t *)words)[i];
    uint64_t read = cpu_ns();
    double os_pages = (double)(bytes / 4096);
    printf("register %.1f\nwrite %.1f\nread %.1f\nsum %lu\n", (double)(made - began) / os_pages,
           (double)(written - made) / os_pages, (double)(read - written) / os_pages, sum);
}

static _Atomic bool is_over;
static uint64_t *area;
static size_t area_bytes;
static uint64_t longest_ns;

static void *toucher(void *nothing) {
    uint64_t last = now_ns();
    for (size_t at = 0; !atomic_load(&is_over); at = (at + 4096 * 7) % area_bytes) {
        (void)__atomic_load_n(&area[at / 8], __ATOMIC_RELAXED);
        uint64_t now = now_ns();
        longest_ns = now - last > longest_ns ? now - last : longest_ns;
        last = now;
    }
    return nothing;
}

static void *writer(void *nothing) {
    for (size_t at = 8; !atomic_load(&is_over); at = (at + 4096) % area_bytes)
        __atomic_fetch_add(&area[at / 8], 1, __ATOMIC_RELAXED);
    return nothing;
}

static void kernel_moves(int node) {
    unsigned long mask[16] = {0};
    mask[node / 64] = 1ul << node % 64;
    if (syscall(SYS_mbind, area, area_bytes, MPOL_BIND, mask, 1025, MPOL_MF_MOVE))
        die("mbind");
}

static uint64_t timed(int (*call)(void *, size_t, int), int node) {
    uint64_t began = cpu_ns();
    if (call(area, area_bytes, node))
        die("vregion");
    return cpu_ns() - began;
}

static void move(const char *kind, size_t bytes, int node, int writers) {
    bool by_kernel = !strcmp(kind, "kernel") || !strcmp(kind, "kernelthp");
    area = make(!strcmp(kind, "kernel") ? "mmap" : by_kernel ? "thp" : kind, bytes);
    area_bytes = bytes;
    memset(area, 1, bytes);
    pthread_t threads[16], watch;
    for (int i = 0; i < writers && i < 16; i++)
        pthread_create(&threads[i], NULL, writer, NULL);
    pthread_create(&watch, NULL, toucher, NULL);
    uint64_t whole = 0, ahead = 0, switched = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int to = round % 2 ? 0 : node;
        uint64_t began = cpu_ns();
        if (by_kernel)
            kernel_moves(to);
        else if (round < ROUNDS / 2)
            whole += timed(tiercel_vregion_migrate, to);
        else {
            ahead += timed(tiercel_vregion_replicate, to);
            switched += timed(tiercel_vregion_migrate, to);
        }
        whole += by_kernel && round < ROUNDS / 2 ? cpu_ns() - began : 0;
    }
    atomic_store(&is_over, true);
    pthread_join(watch, NULL);
    for (int i = 0; i < writers && i < 16; i++)
        pthread_join(threads[i], NULL);
    double part = (double)bytes * (ROUNDS / 2) / 4096;
    printf("whole %.1f\n", (double)whole / part);
    if (!by_kernel)
        printf("copy %.1f\nswitch %.1f\n", (double)ahead / part, (double)switched / part);
    printf("stall %.1f\n", (double)longest_ns);
}

int main(int count, char **arguments) {
    size_t bytes = count > 3 ? (size_t)atol(arguments[3]) << 20 : 0;
    if (count == 4 && !strcmp(arguments[1], "touch"))
        touch(arguments[2], bytes);
    else if (count == 6 && !strcmp(arguments[1], "move"))
        move(arguments[2], bytes, atoi(arguments[4]), atoi(arguments[5]));
    else
        return 2;
    return 0;
}
