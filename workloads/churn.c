/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * churn: small objects allocated, resized and freed at random, some by another thread.
 * In: slots, operations, threads. Out: one line; right when every object, when it is freed, still
 * holds what was written into it.
 * Knows nothing of tiers: its purpose is as many allocation events as possible.
 */
#include "workload.h"
#include <pthread.h>
#include <stdatomic.h>

enum { SLOTS, OPERATIONS, THREADS, LARGEST, SEED, CORRUPT };

static struct option options[] = {
    [SLOTS] = {"slots", 100000, "objects that live at a time"},
    [OPERATIONS] = {"accesses", 10000000, "operations of each thread"},
    [THREADS] = {"threads", 2, "threads, 64 at most; all share the slots"},
    [LARGEST] = {"largest", 1024, "bytes of the largest object; one in 1024 is 64 times that"},
    [SEED] = {"seed", 0, "of sizes and slots"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt an object, which the check must detect"},
};

/* Chosen, not measured. */
#define THREADS_MAX 64
#define BIG_FACTOR 64

/* An object begins with its length; its first and last byte are derived from that. */
struct object {
    uint32_t bytes;
    unsigned char content[];
};

static _Atomic(struct object *) *slots;

static unsigned char mark(uint32_t bytes) {
    return (unsigned char)(bytes * 31 + 7);
}

static struct object *make(struct object *old, uint64_t *state) {
    uint64_t largest = options[LARGEST].value;
    uint64_t choice = next_random(state);
    uint64_t bytes = 1 + random_below(state, largest * (choice % 1024 == 0 ? BIG_FACTOR : 1));
    struct object *object = realloc(old, sizeof *object + bytes);
    if (object == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(3);
    }
    object->bytes = (uint32_t)bytes;
    object->content[0] = object->content[bytes - 1] = mark(object->bytes);
    return object;
}

static bool intact(const struct object *object) {
    unsigned char want = mark(object->bytes);
    return object->content[0] == want && object->content[object->bytes - 1] == want;
}

/* Replaces the object in a random slot, whichever thread allocated it. */
static void *run(void *argument) {
    uint64_t state = seeded(options[SEED].value, (uintptr_t)argument);
    uintptr_t wrong = 0;
    for (uint64_t n = 0; n < options[OPERATIONS].value; n++) {
        uint64_t at = random_below(&state, options[SLOTS].value);
        struct object *object = atomic_exchange(&slots[at], NULL);
        wrong += object != NULL && !intact(object);
        if (next_random(&state) % 4 != 0) {
            free(object);
            object = NULL;
        }
        object = atomic_exchange(&slots[at], make(object, &state));
        free(object);
    }
    return (void *)wrong;
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    uint64_t threads = options[THREADS].value;
    if (threads == 0 || threads > THREADS_MAX || options[SLOTS].value == 0 ||
        options[LARGEST].value == 0) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    slots = calloc(options[SLOTS].value, sizeof *slots);
    pthread_t handles[THREADS_MAX];
    uint64_t start = region_begin(), wrong = 0;
    for (uintptr_t t = 0; t < threads; t++) {
        if (slots == NULL || pthread_create(&handles[t], NULL, run, (void *)t) != 0) {
            fprintf(stderr, "cannot start thread %ju\n", (uintmax_t)t);
            return 3;
        }
    }
    for (uint64_t t = 0; t < threads; t++) {
        void *result;
        pthread_join(handles[t], &result);
        wrong += (uintptr_t)result;
    }
    uint64_t took = region_end(start);
    for (uint64_t i = 0; options[CORRUPT].value && i < options[SLOTS].value; i++) {
        struct object *object = slots[i];
        if (object != NULL) {
            object->content[0] ^= 1;
        }
    }
    for (uint64_t i = 0; i < options[SLOTS].value; i++) {
        struct object *object = slots[i];
        wrong += object != NULL && !intact(object);
        free(object);
    }
    free((void *)slots);
    return finish("churn", wrong == 0, threads * options[OPERATIONS].value, took);
}
