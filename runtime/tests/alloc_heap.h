/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_heap.h: the run layer by itself, without malloc, for the sanitizers.
 * In: nothing. Out: main(): threads that allocate, resize, and free each other's runs.
 * Knows nothing of small slots; the tracking half is alloc_untracked.c.
 */
#include "../alloc/heap.c"
#include "../alloc/heap_cache.c"
#include "../alloc/heap_far.c"
#include "../alloc/heap_home.c"
#include "../alloc/heap_range.c"
#include "../alloc/heap_split.c"
#include "../assert.c"
#include "../keys.c"
#include "alloc_untracked.c"
#include <stdio.h>
#include <stdlib.h>

__thread bool tcl_in_fork;
bool tcl_forks_alone;
bool tcl_locks_opened;
_Atomic bool tcl_limit_due;
bool tcl_limit_look(void) {
    atomic_store(&tcl_limit_due, false);
    return false;
}
void tcl_lock_opened(uintptr_t start, size_t bytes) {
    (void)start, (void)bytes;
}
void tcl_warn(const char *what) {
    fprintf(stderr, "%s\n", what);
}
void tcl_abort_with(const char *text, size_t bytes) {
    fwrite(text, 1, bytes, stderr);
    abort();
}
void tcl_small_before_fork(void) {}
void tcl_small_after_fork(void) {}
void tcl_small_exchange(size_t fresh) {
    (void)fresh;
}
void tcl_small_each(void (*visit)(const struct tcl_use *, void *), void *context) {
    (void)visit, (void)context;
}

#ifndef ALLOC_HEAP_NO_MAIN
#define THREADS 4 /* chosen: more than the CPUs of a small machine */
#ifndef STEPS
#define STEPS 30000
#endif
#define SLOTS 64 /* chosen: up to 64 * 4 MiB are live */

static _Atomic uintptr_t shared[SLOTS]; /* objects that another thread will free */

static uint64_t next_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (*state * 0x2545f4914f6cdd1dull) >> 16;
}

static size_t random_bytes(uint64_t *state) {
    uint64_t r = next_random(state);
    return r % 8 == 0 ? 4096 + r / 8 % (4 << 20) : 4096 + r / 8 % 300000;
}

static void *work(void *seed) {
    uint64_t state = (uintptr_t)seed * 77 + 1;
    const struct caller caller = {NULL, NULL};
    for (int i = 0; i < STEPS; i++) {
        size_t bytes = random_bytes(&state);
        bool zero = next_random(&state) % 4 == 0;
        size_t align = next_random(&state) % 16 ? 1 : (size_t)4096 << next_random(&state) % 10;
        char *p = tcl_run_alloc(bytes, align, zero, caller);
        if (!p || (uintptr_t)p % align || (zero && (p[0] || p[bytes / 2] || p[bytes - 1])))
            abort();
        *(size_t *)p = bytes;
        p[bytes - 1] = 9;
        if (next_random(&state) % 4 == 0) {
            size_t more = random_bytes(&state);
            p = tcl_run_realloc(p, more, caller);
            if (!p || *(size_t *)p != bytes || (more >= bytes && p[bytes - 1] != 9))
                abort();
        }
        p = (char *)atomic_exchange(&shared[next_random(&state) % SLOTS], (uintptr_t)p);
        if (p)
            tcl_run_free(p);
        if (i % 5000 == 0)
            tcl_pages_purge(i % 10000 == 0);
    }
    tcl_cache_flush();
    return NULL;
}

static void count(const struct tcl_use *use, void *context) {
    *(size_t *)context += use->bytes != 0;
}

int main(void) {
    pthread_t threads[THREADS];
    tcl_heap_init();
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    size_t live = 0, left = 0;
    tcl_heap_each(count, &live);
    for (int i = 0; i < SLOTS; i++)
        left += shared[i] != 0;
    for (int i = 0; i < SLOTS; i++)
        if (shared[i])
            tcl_run_free((void *)shared[i]);
    tcl_cache_flush();
    tcl_pages_purge(true);
    struct heap_figures end = tcl_heap_figures();
    printf("run layer under a sanitizer: %zu live, %zu known, %zu OS pages left\n", left, live,
           end.open - end.clean);
    return live != left || end.open != end.clean;
}
#endif
