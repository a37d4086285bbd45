/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * bench-alloc.c: one allocation pattern, run in a process of its own under whatever malloc is
 * preloaded. In: the name of a pattern and a count of rounds. Out: "cpu_ns peak_kib" on stdout.
 * Knows nothing of allocators; every pattern is deterministic.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

typedef uint64_t u64;

static u64 next_random(u64 *state) { /* xorshift64* */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

/* 0 .. n-1 without a division: the harness must cost little beside a malloc of 5 ns. */
static size_t below(u64 *state, size_t n) {
    return (size_t)((next_random(state) >> 32) * n >> 32);
}

/* A program writes what it allocates: first and last byte. */
static void use(char *p, size_t bytes) {
    if (!p)
        abort();
    p[0] = p[bytes - 1] = 1;
}

static void use_pages(char *p, size_t bytes) {
    if (!p)
        abort();
    for (size_t i = 0; i < bytes; i += 4096)
        p[i] = 1;
}

/* Sizes as programs ask for them: many small, few large (a Zipf law over 16..2048). */
static size_t zipf_size(u64 *state) {
    u64 r = next_random(state);
    unsigned scale = (unsigned)__builtin_ctzll(r | 1ull << 7); /* 0..7, halving */
    return 16 + ((r >> 32) & ((16u << scale) - 1));
}

/* Replace random slots of a table: `slots` live objects, sizes by `size`. */
static void churn(u64 rounds, size_t slots, size_t (*size)(u64 *), void (*touch)(char *, size_t),
                  u64 seed) {
    char **table = calloc(slots, sizeof(char *));
    u64 state = seed;
    for (u64 i = 0; i < rounds; i++) {
        size_t slot = below(&state, slots), bytes = size(&state);
        free(table[slot]);
        touch(table[slot] = malloc(bytes), bytes);
    }
    for (size_t i = 0; i < slots; i++)
        free(table[i]);
    free(table);
}

static size_t size_fixed(u64 *state) {
    return (void)state, 64;
}
static size_t size_4k_64k(u64 *state) {
    return 4096 + below(state, 60 << 10);
}
static size_t size_64k_4m(u64 *state) {
    unsigned shift = (unsigned)(next_random(state) % 6); /* as many of each doubling */
    return (65536ull << shift) + next_random(state) % (65536ull << shift);
}
static size_t size_mixed(u64 *state) {
    u64 r = next_random(state) % 1000;
    return r < 950   ? zipf_size(state)
           : r < 990 ? size_4k_64k(state)
           : r < 999 ? 65536 + next_random(state) % (256 << 10)
                     : size_64k_4m(state);
}

static void small_zipf(u64 n) {
    churn(n, 20000, zipf_size, use, 1);
}
static void small_fixed(u64 n) {
    churn(n, 5000, size_fixed, use, 2);
}
static void medium(u64 n) {
    churn(n, 500, size_4k_64k, use, 3);
}
static void large(u64 n) {
    churn(n, 60, size_64k_4m, use_pages, 4);
}

/* Build lists, free them in order: the shape of parsers and compilers. */
static void small_lists(u64 n) {
    struct node {
        struct node *next;
        char body[];
    };
    u64 state = 5;
    for (u64 done = 0; done < n;) {
        struct node *head = NULL;
        for (int i = 0; i < 10000; i++, done++) {
            size_t bytes = sizeof(struct node) + 8 + below(&state, 120);
            struct node *node = malloc(bytes);
            memset(node->body, 1, bytes - sizeof *node);
            node->next = head;
            head = node;
        }
        for (struct node *next; head; head = next) {
            next = head->next;
            free(head);
        }
    }
}

#define THREADS 2 /* one for each CPU of the smallest machine it runs on */

struct job {
    void (*work)(struct job *);
    u64 rounds, seed;
    char **shared;
};

static void *run_job(void *job) {
    ((struct job *)job)->work(job);
    return NULL;
}

static void in_threads(u64 rounds, void (*work)(struct job *), char **shared) {
    pthread_t threads[THREADS];
    struct job jobs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){work, rounds / THREADS, 10 + (u64)i, shared};
        pthread_create(&threads[i], NULL, run_job, &jobs[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* threadtest: each thread allocates a batch of small objects and frees it, again and again. */
static void batches(struct job *job) {
    char *batch[1000];
    for (u64 done = 0; done < job->rounds; done += 1000) {
        for (int i = 0; i < 1000; i++)
            use(batch[i] = malloc(16 + (size_t)(i & 7) * 16), 16);
        for (int i = 0; i < 1000; i++)
            free(batch[i]);
    }
}
static void small_threads(u64 n) {
    in_threads(n, batches, NULL);
}

/* larson: objects outlive the thread that made them; threads come and go. */
static void larson_turn(struct job *job) {
    u64 state = job->seed;
    for (u64 i = 0; i < job->rounds; i++) {
        size_t slot = below(&state, 4000), bytes = 8 + below(&state, 500);
        free(job->shared[slot]);
        use(job->shared[slot] = malloc(bytes), bytes);
    }
}
static void small_larson(u64 n) {
    char **tables[THREADS];
    for (int i = 0; i < THREADS; i++)
        tables[i] = calloc(4000, sizeof(char *));
    for (u64 turn = 0; turn < 10; turn++) {
        pthread_t threads[THREADS];
        struct job jobs[THREADS];
        for (int i = 0; i < THREADS; i++) { /* each table passes to another thread every turn */
            jobs[i] = (struct job){larson_turn, n / THREADS / 10, turn + 20 + (u64)i,
                                   tables[(turn + (u64)i) % THREADS]};
            pthread_create(&threads[i], NULL, run_job, &jobs[i]);
        }
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
    }
}

/* One thread allocates, the other frees, through a bounded ring of pointers. */
#define RING 1024 /* chosen, not measured */
static char *ring[RING];
static u64 ring_head, ring_tail;
static size_t (*ring_size)(u64 *);
static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ring_moved = PTHREAD_COND_INITIALIZER;

static void produce_or_consume(struct job *job) {
    u64 state = job->seed;
    char *batch[RING / 4];
    for (u64 done = 0; done < job->rounds * THREADS; done += RING / 4) {
        if (job->seed == 10)
            for (int i = 0; i < RING / 4; i++) {
                size_t bytes = ring_size(&state);
                use(batch[i] = malloc(bytes), bytes);
            }
        pthread_mutex_lock(&ring_lock);
        while (job->seed == 10 ? ring_head - ring_tail > RING - RING / 4 : ring_head == ring_tail)
            pthread_cond_wait(&ring_moved, &ring_lock);
        for (int i = 0; i < RING / 4; i++)
            if (job->seed == 10)
                ring[ring_head++ % RING] = batch[i];
            else
                batch[i] = ring[ring_tail++ % RING];
        pthread_cond_signal(&ring_moved);
        pthread_mutex_unlock(&ring_lock);
        if (job->seed != 10)
            for (int i = 0; i < RING / 4; i++)
                free(batch[i]);
    }
}
static void cross(u64 n) {
    ring_size = zipf_size;
    in_threads(n, produce_or_consume, NULL);
}
static void cross_medium(u64 n) {
    ring_size = size_4k_64k;
    in_threads(n, produce_or_consume, NULL);
}

/* A vector that grows by a bit each time, its new part written; and many that grow together. */
static void grow(u64 n) {
    for (u64 i = 0; i < n; i++) {
        char *p = NULL;
        size_t filled = 0;
        for (size_t bytes = 64; bytes < 16u << 20; bytes += bytes / 8 + 16) {
            p = realloc(p, bytes);
            memset(p + filled, 1, bytes - filled);
            filled = bytes;
        }
        free(p);
    }
}
static void grow_many(u64 n) {
    for (u64 i = 0; i < n; i++) {
        enum { VECTORS = 64 };
        char *vectors[VECTORS] = {0};
        size_t filled[VECTORS] = {0};
        for (size_t bytes = 32; bytes < 512u << 10; bytes += bytes / 4 + 16)
            for (int v = 0; v < VECTORS; v++) {
                vectors[v] = realloc(vectors[v], bytes);
                memset(vectors[v] + filled[v], 1, bytes - filled[v]);
                filled[v] = bytes;
            }
        for (int v = 0; v < VECTORS; v++)
            free(vectors[v]);
    }
}

/* Large zeroed tables, one byte in each OS page of the first half written. */
static void calloc_large(u64 n) {
    u64 state = 6;
    for (u64 i = 0; i < n; i++) {
        size_t bytes = size_64k_4m(&state) * 2;
        char *p = calloc(1, bytes);
        if (!p || p[bytes / 2] != 0)
            abort();
        use_pages(p, bytes / 2);
        free(p);
    }
}

/* Peak memory: a mixed workload whose live set swells, shrinks and swells again. */
static void memory(u64 n) {
    for (u64 wave = 0; wave < 4; wave++) {
        size_t slots = 40000 >> (wave & 1);
        churn(n / 4, slots, size_mixed, use_pages, 7 + wave);
    }
}

static const struct {
    const char *name;
    void (*run)(u64);
} patterns[] = {
    {"small-zipf", small_zipf},
    {"small-fixed", small_fixed},
    {"small-lists", small_lists},
    {"small-threads", small_threads},
    {"small-larson", small_larson},
    {"medium", medium},
    {"large", large},
    {"cross", cross},
    {"cross-medium", cross_medium},
    {"grow", grow},
    {"grow-many", grow_many},
    {"calloc-large", calloc_large},
    {"memory", memory},
};

int main(int argc, char **argv) {
    if (argc == 3)
        for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
            if (strcmp(argv[1], patterns[i].name) == 0) {
                struct timespec before, after;
                clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
                patterns[i].run(strtoull(argv[2], NULL, 10));
                clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
                struct rusage usage;
                getrusage(RUSAGE_SELF, &usage);
                printf("%lld %ld\n",
                       (long long)(after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec -
                           before.tv_nsec,
                       usage.ru_maxrss);
                return 0;
            }
    fprintf(stderr, "usage: bench-alloc PATTERN ROUNDS\n");
    return 2;
}
