/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * twin: random accesses at an address that is the same in every twin.
 * In: MiB, accesses of each thread, threads, `read` or `write`. Out: `ready`, the process, its
 * threads; then it stops itself until it is continued; then `done` when its own check holds.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS_MAX = 8, LINE = 64 };

static char *const place = (char *)UINT64_C(0x600000000000);
static uint64_t lines, accesses;
static int writes;
static pthread_barrier_t known, go;
static pid_t numbers[THREADS_MAX];
static uint64_t sums[THREADS_MAX];

static void *run(void *argument) {
    size_t own = (size_t)argument;
    numbers[own] = gettid();
    pthread_barrier_wait(&known);
    pthread_barrier_wait(&go);
    uint64_t state = own + 1, sum = 0;
    for (uint64_t n = 0; n < accesses; n++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        volatile uint64_t *word = (uint64_t *)(place + (state >> 32) % lines * LINE);
        if (writes) {
            *word = 1;
        } else {
            sum += *word;
        }
    }
    sums[own] = sum;
    return NULL;
}

int main(int argc, char **argv) {
    size_t threads = argc == 5 ? strtoull(argv[3], NULL, 10) : 0;
    if (threads == 0 || threads > THREADS_MAX) {
        fprintf(stderr, "usage: twin MIB ACCESSES THREADS read|write\n");
        return 2;
    }
    size_t bytes = strtoull(argv[1], NULL, 10) << 20;
    lines = bytes / LINE;
    accesses = strtoull(argv[2], NULL, 10);
    writes = strcmp(argv[4], "write") == 0;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_POPULATE;
    if (mmap(place, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) != place) {
        perror("mmap");
        return 1;
    }
    for (uint64_t line = 0; line < lines; line++) {
        *(uint64_t *)(place + line * LINE) = 1;
    }
    pthread_t made[THREADS_MAX];
    pthread_barrier_init(&known, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&go, NULL, (unsigned)threads + 1);
    for (size_t i = 0; i < threads; i++) {
        if (pthread_create(&made[i], NULL, run, (void *)i) != 0) {
            return 1;
        }
    }
    pthread_barrier_wait(&known);
    printf("ready %d", getpid());
    for (size_t i = 0; i < threads; i++) {
        printf(" %d", numbers[i]);
    }
    printf("\n");
    fflush(stdout);
    raise(SIGSTOP);
    pthread_barrier_wait(&go);
    uint64_t sum = 0;
    for (size_t i = 0; i < threads; i++) {
        pthread_join(made[i], NULL);
        sum += sums[i];
    }
    int right = sum == (writes ? 0 : threads * accesses);
    printf("%s\n", right ? "done" : "WRONG");
    return !right;
}
