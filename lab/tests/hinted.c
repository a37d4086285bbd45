/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * hinted.c: threads that stay on a CPU each access memory of their own, again and again.
 * In: KiB of each thread, seconds, CPUs. Out: `thread TID CPU ADDRESS BYTES` lines, `ready PID`,
 * then, when it is continued, the accesses. Knows nothing of faults.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 16, OS_PAGE = 4096 };

static pthread_barrier_t touched;
static pthread_barrier_t begin;
static size_t bytes;
static double seconds;

struct work {
    int cpu;
    volatile char *memory;
    int tid;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void access_all(struct work *work) {
    for (size_t at = 0; at < bytes; at += OS_PAGE) {
        work->memory[at]++;
    }
}

static void *run(void *argument) {
    struct work *work = argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(work->cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("hinted: sched_setaffinity");
        exit(1);
    }
    work->tid = (int)syscall(SYS_gettid);
    access_all(work);
    pthread_barrier_wait(&touched);
    pthread_barrier_wait(&begin);
    for (double end = now() + seconds; now() < end;) {
        access_all(work);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 3 + THREADS_MAX) {
        fprintf(stderr, "usage: hinted KIB SECONDS CPU...\n");
        return 2;
    }
    static struct work works[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    int count = argc - 3;
    bytes = strtoul(argv[1], NULL, 10) << 10;
    seconds = strtod(argv[2], NULL);
    pthread_barrier_init(&touched, NULL, (unsigned)count + 1);
    pthread_barrier_init(&begin, NULL, (unsigned)count + 1);
    for (int i = 0; i < count; i++) {
        void *memory =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || madvise(memory, bytes, MADV_NOHUGEPAGE) != 0) {
            perror("hinted: mmap");
            return 1;
        }
        works[i] = (struct work){.cpu = atoi(argv[3 + i]), .memory = memory};
        pthread_create(&threads[i], NULL, run, &works[i]);
    }
    pthread_barrier_wait(&touched);
    for (int i = 0; i < count; i++) {
        printf("thread %d %d %p %zu\n", works[i].tid, works[i].cpu, (void *)works[i].memory, bytes);
    }
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    raise(SIGSTOP);
    pthread_barrier_wait(&begin);
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
    return 0;
}
