/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_threads.c: threads that start and end, and allocate in destructors of their keys.
 * In: the preloaded library. Out: one line, 0 when memory is reused and contents are kept.
 * Knows nothing of thread caches.
 */
#include "check.h"
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURNS 400 /* chosen: a leak of 28 KiB a turn exceeds the limit below */

static pthread_key_t keys[40];

/* Runs after the allocator's own destructor for some of the keys, before it for others. */
static void use_heap_at_exit(void *value) {
    free(value);
    char *p[30];
    for (int i = 0; i < 30; i++) {
        p[i] = malloc((size_t)(i * 3001 + 1));
        p[i][i * 3001] = 1;
    }
    for (int i = 0; i < 30; i++)
        free(p[i]);
}

static void *work(void *argument) {
    char **inherited = argument;
    for (int i = 0; i < 40; i++)
        pthread_setspecific(keys[i], malloc((size_t)(i * 500 + 1)));
    for (int i = 0; i < 100; i++) {
        free(inherited[i]); /* made by the thread before */
        inherited[i] = malloc((size_t)(i * 977 % 60000 + 1));
        memset(inherited[i], i, (size_t)(i * 977 % 60000 + 1));
    }
    return NULL;
}

static long resident_kib(void) {
    long size, resident;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &resident) != 2)
        return -1;
    fclose(f);
    return resident * 4;
}

/* The runtime has keys by the time of the first allocation. */
static void check_keys(void) {
    static pthread_key_t key[PTHREAD_KEYS_MAX];
    int count = 0;
    free(malloc(1));
    free(malloc(100000));
    while (count < PTHREAD_KEYS_MAX && !pthread_key_create(&key[count], NULL))
        count++;
    CHECK(count >= PTHREAD_KEYS_MAX - 3, "%d keys", count);
    CHECK(key[0] == 0, "the program's first key is %u", key[0]);
    while (count)
        pthread_key_delete(key[--count]);
}

int main(void) {
    char *objects[100] = {0};
    long early = 0;
    check_keys();
    for (int i = 0; i < 40; i++)
        pthread_key_create(&keys[i], use_heap_at_exit);
    for (int turn = 0; turn < TURNS; turn++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, objects) != 0)
            return 1;
        pthread_join(thread, NULL);
        for (int i = 0; i < 100; i++)
            if (objects[i][i * 977 % 60000] != (char)i)
                return printf("contents broken\n"), 1;
        if (turn == TURNS / 4)
            early = resident_kib();
    }
    long grown = resident_kib() - early;
    printf("threads that come and go: %ld KiB grown in %d turns\n", grown, TURNS * 3 / 4);
    return grown > 8192;
}
