/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_fork.c: fork while other threads allocate; the children use every part of the heap.
 * In: the preloaded library. Out: one line, 0 when every child succeeded and none hung.
 * Knows nothing of the allocator's locks.
 */
#include "check.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 3 /* chosen: more than the CPUs of a small machine */
#define FORKS 150 /* chosen */

static _Atomic int stop;

static void churn(unsigned seed, int steps) {
    char *p[40] = {0};
    for (int i = 0; i < steps; i++) {
        seed = seed * 1664525 + 1013904223;
        unsigned slot = (seed >> 8) % 40;
        size_t bytes = seed >> 28 ? (seed >> 10) % 3000 : (seed >> 10) % 900000;
        free(p[slot]);
        p[slot] = malloc(bytes + 1);
        if (!p[slot])
            _exit(3);
        p[slot][bytes] = 1;
        p[slot][0] = 1;
    }
    for (int i = 0; i < 40; i++)
        free(p[i]);
}

static void *work(void *argument) {
    for (unsigned round = 0; !stop; round++)
        churn(round + (unsigned)(size_t)argument, 100);
    return NULL;
}

static void *once(void *argument) {
    churn((unsigned)(size_t)argument, 300);
    return NULL;
}

/* A fork handler of a library loaded before runs while the runtime's locks are held, and allocates.
 */
static void allocate(void) {
    churn(7, 50);
}

int main(void) {
    pthread_t threads[THREADS], child;
    int bad = 0;
    char *kept = malloc(100000);
    memset(kept, 42, 100000);
    pthread_atfork(allocate, allocate, allocate);
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i * 1000));
    for (int i = 0; i < FORKS; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(HANG_S); /* a deadlock ends the child by a signal */
            churn((unsigned)i, 300);
            if (pthread_create(&child, NULL, once, NULL) != 0)
                _exit(4);
            pthread_join(child, NULL);
            for (int j = 0; j < 100000; j++)
                if (kept[j] != 42)
                    _exit(5);
            free(kept);
            if (i % 10 == 0 && fork() == 0) {
                churn(1, 300);
                _exit(0);
            }
            while (wait(NULL) > 0) {
            }
            _exit(0);
        }
        int status = -1;
        waitpid(pid, &status, 0);
        bad += status != 0;
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("fork under allocating threads: %d of %d children failed\n", bad, FORKS);
    return bad != 0;
}
