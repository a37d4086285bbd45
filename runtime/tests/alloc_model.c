/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_model.c: random calls from several threads, against a slow obvious model.
 * In: the preloaded library; a seed as argument. Out: one line with the seed, 0 when nothing broke.
 * Knows nothing of the allocator.
 *
 * The model is the content: every object is filled with a pattern made of its id, and checked
 * before it is resized or freed. Two objects that overlap, or one that moved wrongly, break a
 * pattern. Objects go through one shared table, so that about half of the frees come from another
 * thread.
 */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 4   /* chosen: more than the CPUs of a small machine */
#ifndef STEPS
#define STEPS 60000 /* chosen */
#endif
#define SLOTS 512   /* objects that live at a time. Chosen */

struct object {
    unsigned char *p;
    size_t bytes;
    uint64_t id;
};

static struct object table[SLOTS];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int failures;
static uint64_t seed;

static uint64_t next_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

static size_t random_size(uint64_t *state) {
    uint64_t r = next_random(state) >> 16;
    switch (r % 16) {
    case 0:
        return r / 16 % (6 << 20);
    case 1:
    case 2:
        return r / 16 % 400000;
    case 3:
    case 4:
    case 5:
        return r / 16 % 70000;
    case 6:
    case 7:
        return 4096 * (r / 16 % 70 + 1) + r % 3 - 1;
    default:
        return r / 16 % 5000;
    }
}

/* Samples of a big object, all of a small one. */
static size_t step_of(size_t bytes) {
    return bytes < 8192 ? 1 : 509;
}

static void fill(const struct object *o) {
    for (size_t i = 0; i < o->bytes; i += step_of(o->bytes))
        o->p[i] = (unsigned char)(o->id + i);
    if (o->bytes)
        o->p[o->bytes - 1] = (unsigned char)(o->id * 3);
}

static void fail(const char *what, const struct object *o) {
    if (failures++ < 5)
        printf("%s: %p, %zu bytes, id %llu\n", what, (void *)o->p, o->bytes,
               (unsigned long long)o->id);
}

static void check(const struct object *o, size_t bytes) {
    for (size_t i = 0; i < bytes; i += step_of(o->bytes)) {
        unsigned char want = (unsigned char)(i == o->bytes - 1 ? o->id * 3 : o->id + i);
        if (o->p[i] != want) {
            fail("contents", o);
            return;
        }
    }
}

static struct object make(uint64_t *state) {
    struct object o = {NULL, random_size(state), next_random(state)};
    size_t align = 1;
    switch (next_random(state) >> 40 & 7) {
    case 0:
        o.p = calloc(1, o.bytes);
        for (size_t i = 0; o.p && i < o.bytes; i++)
            if (o.p[i]) {
                fail("calloc not zero", &o);
                break;
            }
        break;
    case 1:
        align = (size_t)16 << (next_random(state) >> 40) % 12;
        o.p = memalign(align, o.bytes);
        break;
    default:
        o.p = malloc(o.bytes);
    }
    if (!o.p || (uintptr_t)o.p % (align < 16 ? 16 : align) || malloc_usable_size(o.p) < o.bytes)
        fail("pointer", &o);
    fill(&o);
    return o;
}

static void turn(struct object *o, uint64_t *state) {
    if (o->p && (next_random(state) >> 40) % 4 == 0) {
        size_t bytes = random_size(state) + 1;
        check(o, o->bytes);
        size_t kept = o->bytes < bytes ? o->bytes : bytes;
        unsigned char *p = realloc(o->p, bytes);
        if (!p || malloc_usable_size(p) < bytes)
            fail("realloc", o);
        o->p = p;
        check(o, kept);
        o->bytes = bytes;
        fill(o);
        return;
    }
    if (o->p) {
        check(o, o->bytes);
        free(o->p);
    }
    *o = make(state);
}

static void *work(void *argument) {
    uint64_t state = seed * 1000003 + (uintptr_t)argument;
    for (int i = 0; i < STEPS; i++) {
        size_t slot = (next_random(&state) >> 20) % SLOTS;
        pthread_mutex_lock(&table_lock);
        struct object o = table[slot];
        table[slot].p = NULL;
        pthread_mutex_unlock(&table_lock);
        turn(&o, &state);
        pthread_mutex_lock(&table_lock);
        struct object other = table[slot];
        table[slot] = o;
        pthread_mutex_unlock(&table_lock);
        if (other.p) {
            check(&other, other.bytes);
            free(other.p);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < SLOTS; i++)
        if (table[i].p) {
            check(&table[i], table[i].bytes);
            free(table[i].p);
        }
    printf("random calls against a model, seed %llu: %d failures\n", (unsigned long long)seed,
           failures);
    return failures != 0;
}
