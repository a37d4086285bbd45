/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_checker.c: several threads write sequence numbers into every word of a vregion while it
 * migrates back and forth, copied by up to three threads, with every size of vpage. No write is
 * lost, no value is torn, none reverts.
 *
 * A word is (writer's sequence << 16 | check of that sequence). Each writer owns every WRITERS-th
 * word and knows what it wrote last; a word with another value was lost or torn. One writer writes
 * by system calls (pread), so that the kernel must be held up as well.
 *
 * argv: seconds (1), MiB (24), the other node (900, which no machine has), `hold`: at the end keeps
 * a vregion on that node, prints its address, and waits to be killed. `heap` instead of the node:
 * the words are in an object of the heap, born after an unused one of three times the size, and the
 * daemon may move all of it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../../include/tiercel.h"
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define WRITERS 3 /* two that write by themselves, one by system calls */

static _Atomic uint64_t *words;
static size_t word_count;
static _Atomic bool is_over;
static _Atomic uint64_t writes, longest_ns;
static int source; /* a memfd that the system calls read from */

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t word_of(uint64_t sequence) {
    return sequence << 16 | ((sequence * 0x9e3779b97f4a7c15ull) >> 48);
}

static void put(size_t at, uint64_t value, bool by_kernel) {
    if (!by_kernel) {
        atomic_store_explicit(&words[at], value, memory_order_relaxed);
        return;
    }
    uint64_t from = value;
    CHECK(pwrite(source, &from, sizeof(from), 0) == sizeof(from));
    ssize_t got = pread(source, (void *)&words[at], sizeof(from), 0);
    CHECK(got == sizeof(from), "a system call into the vregion: %zd, errno %d", got, errno);
}

static void *writer(void *argument) {
    size_t self = (size_t)argument, step = self + 1 == WRITERS ? WRITERS * 509 : WRITERS;
    uint64_t done = 0;
    for (uint64_t sequence = 1; !atomic_load(&is_over); sequence++) {
        for (size_t at = self; at < word_count; at += step) {
            uint64_t before = now_ns();
            uint64_t was = atomic_load_explicit(&words[at], memory_order_relaxed);
            CHECK(was == word_of(sequence - 1), "word %zu: %lx, was %lx", at, was,
                  word_of(sequence - 1));
            put(at, word_of(sequence), self + 1 == WRITERS);
            uint64_t took = now_ns() - before, longest = atomic_load(&longest_ns);
            while (took > longest && !atomic_compare_exchange_weak(&longest_ns, &longest, took))
                ;
            done++;
        }
    }
    atomic_fetch_add(&writes, done);
    return NULL;
}

static int node_of[2] = {0, 900};

/* Migrates pieces and the whole, back and forth, with replicas in between. */
static uint64_t shuffle(char *start, size_t bytes, uint64_t until_ns) {
    unsigned seed = 1;
    uint64_t moved = 0;
    while (now_ns() < until_ns) {
        seed = seed * 1664525u + 1013904223u;
        size_t from = (seed >> 8) % bytes & -(size_t)4096, length = bytes - from;
        length = seed >> 28 < 8 ? length : 4096 + (seed >> 4) % (length - 4095);
        int node = node_of[seed >> 27 & 1];
        CHECK(!tiercel_vregion_copiers(seed >> 23 & 3)); /* 0: as CPUs are idle */
        if (seed >> 25 & 1)
            CHECK(!tiercel_vregion_replicate(start + from, length, node));
        CHECK(!tiercel_vregion_migrate(start + from, length, node));
        CHECK(tiercel_vregion_node(start + from) == node, "%d", tiercel_vregion_node(start));
        moved += length;
    }
    return moved;
}

static void begin(pthread_t *threads) {
    atomic_store(&is_over, false);
    atomic_store(&writes, 0);
    atomic_store(&longest_ns, 0);
    for (size_t at = 0; at < word_count; at++)
        words[at] = word_of(0);
    for (size_t i = 0; i < WRITERS; i++)
        CHECK(!pthread_create(&threads[i], NULL, writer, (void *)i));
}

static void end(const pthread_t *threads) {
    atomic_store(&is_over, true);
    for (size_t i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
}

static void check(int huge, size_t bytes, double seconds) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | huge;
    char *start = tiercel_vregion_register(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(start != MAP_FAILED);
    words = (void *)start;
    word_count = bytes / sizeof(*words);
    for (size_t at = 0; at < word_count; at++)
        CHECK(words[at] == 0, "fresh memory holds %lx", words[at]);
    /* Both nodes have memory before a thread waits for it: then a pool has 10 ms to grant some, and
     * a vregion takes its own where that is over. */
    CHECK(!tiercel_vregion_migrate(start, bytes, node_of[1]));
    CHECK(!tiercel_vregion_migrate(start, bytes, 0));
    pthread_t threads[WRITERS];
    begin(threads);
    uint64_t began = now_ns();
    uint64_t moved = shuffle(start, bytes, began + (uint64_t)(seconds * 1e9));
    double took = (double)(now_ns() - began) / 1e9;
    end(threads);
    long ticket = tiercel_vregion_start(start, bytes, 0);
    CHECK(ticket > 0 && !tiercel_vregion_await(ticket));
    CHECK(tiercel_vregion_node(start + bytes - 1) == 0, "%d", tiercel_vregion_node(start));
    CHECK(!tiercel_vregion_release(start, bytes));
    printf("vpages of %d KiB: %lu M words written while %lu MiB moved in %.1f s, longest stall "
           "%lu us: none lost\n",
           1 << (huge ? (huge >> 26) - 10 : 2), writes / 1000000, moved >> 20, took,
           longest_ns / 1000);
}

static void check_heap(size_t bytes, double seconds) {
    pthread_t threads[WRITERS];
    uint64_t *cold = malloc(3 * bytes), until_ns = now_ns() + (uint64_t)(seconds * 1e9);
    CHECK(cold);
    for (size_t at = 0; at < 3 * bytes / sizeof(*cold); at++)
        cold[at] = word_of(at);
    words = malloc(bytes);
    CHECK(words);
    word_count = bytes / sizeof(*words);
    begin(threads);
    puts("ready");
    fflush(stdout);
    while (now_ns() < until_ns)
        usleep(10000);
    end(threads);
    for (size_t at = 0; at < 3 * bytes / sizeof(*cold); at++)
        CHECK(cold[at] == word_of(at), "cold word %zu: %lx", at, cold[at]);
    printf("heap: %lu M words written, longest stall %lu us: none lost\n", writes / 1000000,
           longest_ns / 1000);
}

static void hold(size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS, rights = PROT_READ | PROT_WRITE;
    char *start = tiercel_vregion_register(NULL, bytes, rights, flags, -1, 0);
    CHECK(start != MAP_FAILED);
    for (size_t at = 0; at < bytes; at++)
        start[at] = (char)at;
    CHECK(!tiercel_vregion_migrate(start, bytes, node_of[1]));
    for (size_t at = 0; at < bytes; at++)
        CHECK(start[at] == (char)at, "byte %zu is %d", at, start[at]);
    printf("held 0x%lx %zu\n", (unsigned long)start, bytes);
    fflush(stdout);
    pause();
}

int main(int count, char **arguments) {
    double seconds = count > 1 ? atof(arguments[1]) : 1;
    size_t bytes = (size_t)(count > 2 ? atol(arguments[2]) : 24) << 20;
    source = memfd_create("source", 0);
    if (count > 3 && !strcmp(arguments[3], "heap")) {
        check_heap(bytes, seconds);
        return 0;
    }
    node_of[1] = count > 3 ? atoi(arguments[3]) : 900;
    if (count > 4)
        hold(bytes);
    check(0, bytes, seconds);
    check(16 << 26, bytes, seconds);
    check(21 << 26, bytes, seconds);
    return 0;
}
