/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * truth_more.c: further patterns of truth.c.
 * In: as there. Out: as there, and a table of them. Knows nothing of the other patterns.
 */
#include "truth.h"

#define EIGHT(DO) DO(part0) DO(part1) DO(part2) DO(part3) DO(part4) DO(part5) DO(part6) DO(part7)
EIGHT(ALLOCATES)
#define MAKES(name) name,
static char *(*const make_part[])(uint64_t) = {EIGHT(MAKES)};
#define PART(name) {#name, 0, 0},
static struct site parts[] = {EIGHT(PART)};
static char *part_arrays[8];

/* Allocates and fills a part. */
static void make_parts(size_t count, const uint64_t *mib) {
    for (size_t i = 0; i < count; i++) {
        parts[i].bytes = mib[i] * MIB;
        part_arrays[i] = filled(&parts[i], make_part[i](parts[i].bytes), parts[i].bytes);
    }
}

/* `count` reads of random lines. */
static void read_some(struct site *site, const char *start, uint64_t bytes, uint64_t count,
                      uint64_t *state) {
    static volatile uint64_t sum;
    uint64_t all = 0;
    for (uint64_t i = 0; i < count; i++)
        all += *(const volatile uint64_t *)(start + next_random(state) % (bytes / LINE) * LINE);
    sum = sum + all;
    atomic_fetch_add_explicit(&site->accesses, count, memory_order_relaxed);
}

/* 128 MiB written once beside 32 MiB that are accessed all the time. */
static void filled_once(void) {
    SITES({"hot", 32 * MIB, 0}, {"cold", 128 * MIB, 0});
    uint64_t state = stream(0);
    filled(&sites[1], cold(128 * MIB), 128 * MIB);
    char *array = filled(&sites[0], hot(32 * MIB), 32 * MIB);
    access_until(&sites[0], array, 32 * MIB, until_ns, &state);
    SAY();
}

/* Nothing is written once all is filled. */
static void only_reads(void) {
    SITES({"hot", 16 * MIB, 0}, {"cold", 32 * MIB, 0});
    uint64_t state = stream(0);
    char *other = filled(&sites[1], cold(32 * MIB), 32 * MIB);
    char *array = filled(&sites[0], hot(16 * MIB), 16 * MIB);
    while (now_ns() < until_ns) {
        read_some(&sites[0], array, 16 * MIB, BATCH * 19, &state);
        read_some(&sites[1], other, 32 * MIB, BATCH, &state);
    }
    SAY();
}

/* Parts of random sizes get random shares of the accesses; some are only read, some in sequence. */
static void mixture(uint64_t number) {
    uint64_t state = seeded(seed, 1000 + number), mib[8], batches[8];
    size_t count = 3 + random_below(&state, 6);
    for (size_t i = 0; i < count; i++) {
        mib[i] = UINT64_C(1) << random_below(&state, 6);
        batches[i] = UINT64_C(1) << random_below(&state, 8);
    }
    uint64_t kinds = next_random(&state), at[8] = {0};
    make_parts(count, mib);
    while (now_ns() < until_ns) {
        for (size_t i = 0; i < count; i++) {
            uint64_t bytes = parts[i].bytes, accesses = batches[i] * 256;
            if (kinds >> (2 * i) & 1) {
                read_some(&parts[i], part_arrays[i], bytes, accesses, &state);
            } else if (kinds >> (2 * i + 1) & 1) {
                for (uint64_t n = 0; n < accesses; n++, at[i] = (at[i] + LINE) % bytes)
                    *(volatile uint64_t *)(part_arrays[i] + at[i]) += n;
                parts[i].accesses += accesses;
            } else {
                access_some(&parts[i], part_arrays[i], bytes, accesses, &state);
            }
        }
    }
    say(parts, count);
}

#define MIXTURE(number)                                                                            \
    static void mixture_##number(void) {                                                           \
        mixture(number);                                                                           \
    }
MIXTURE(1)
MIXTURE(2)
MIXTURE(3)
MIXTURE(4)
MIXTURE(5)

/* The first 6 of 48 MiB are hot. */
static void hot_head(void) {
    SITES({"hot@0-6", 6 * MIB, 0}, {"hot@6-48", 42 * MIB, 0});
    uint64_t state = stream(0);
    char *array = filled(&sites[0], hot(48 * MIB), 6 * MIB);
    filled(&sites[1], array + 6 * MIB, 42 * MIB);
    while (now_ns() < until_ns) {
        access_some(&sites[0], array, 6 * MIB, BATCH * 9, &state);
        access_some(&sites[1], array + 6 * MIB, 42 * MIB, BATCH, &state);
    }
    SAY();
}

/* The last 4 of 64 MiB are hot. */
static void hot_tail(void) {
    SITES({"hot@0-60", 60 * MIB, 0}, {"hot@60-64", 4 * MIB, 0});
    uint64_t state = stream(0);
    char *array = filled(&sites[0], hot(64 * MIB), 60 * MIB);
    filled(&sites[1], array + 60 * MIB, 4 * MIB);
    while (now_ns() < until_ns) {
        access_some(&sites[1], array + 60 * MIB, 4 * MIB, BATCH * 9, &state);
        access_some(&sites[0], array, 60 * MIB, BATCH, &state);
    }
    SAY();
}

/* Every fourth 2 MiB of 32 are hot. */
static void strides(void) {
    SITES({"hot@0-2", 2 * MIB, 0}, {"hot@2-8", 6 * MIB, 0}, {"hot@8-10", 2 * MIB, 0},
          {"hot@10-16", 6 * MIB, 0}, {"hot@16-18", 2 * MIB, 0}, {"hot@18-24", 6 * MIB, 0},
          {"hot@24-26", 2 * MIB, 0}, {"hot@26-32", 6 * MIB, 0});
    uint64_t state = stream(0);
    char *array = hot(32 * MIB);
    for (uint64_t i = 0, at = 0; i < 8; at += sites[i++].bytes)
        filled(&sites[i], array + at, sites[i].bytes);
    while (now_ns() < until_ns)
        for (uint64_t i = 0, at = 0; i < 8; at += sites[i++].bytes)
            access_some(&sites[i], array + at, sites[i].bytes, i % 2 ? BATCH : BATCH * 9, &state);
    SAY();
}

SITE char *vector(char *memory, uint64_t bytes) {
    char *larger = realloc(memory, bytes);
    if (!larger)
        exit(3);
    return larger;
}

/* 32 vectors double until they have a MiB each and begin anew, beside buffers of the same size. */
static void vectors(void) {
    SITES({"vector", 32 * MIB, 0}, {"cold", 32 * MIB, 0});
    uint64_t state = stream(0), bytes[32] = {0};
    char *vectors[32] = {0}, *other = filled(&sites[1], cold(32 * MIB), 32 * MIB);
    for (uint64_t turn = 0; now_ns() < until_ns; turn++) {
        uint64_t i = turn % 32, before = bytes[i];
        if (before == MIB) {
            free(vectors[i]);
            vectors[i] = NULL;
            before = 0;
        }
        bytes[i] = before ? before * 2 : 8192;
        vectors[i] = vector(vectors[i], bytes[i]);
        filled(&sites[0], vectors[i] + before, bytes[i] - before);
        access_some(&sites[0], vectors[i], bytes[i], BATCH * 8, &state);
        access_some(&sites[1], other, 32 * MIB, BATCH / 2, &state);
    }
    SAY();
}

ALLOCATES(edges)
ALLOCATES(graph_rows)
ALLOCATES(values)

/* A graph is built from a list of edges, which is freed; the kernel uses the rest. */
static void graph(void) {
    SITES({"edges", 48 * MIB, 0}, {"graph_rows", 24 * MIB, 0}, {"values", 8 * MIB, 0});
    uint64_t state = stream(0);
    char *list = filled(&sites[0], edges(48 * MIB), 48 * MIB);
    char *rows = filled(&sites[1], graph_rows(24 * MIB), 24 * MIB);
    access_some(&sites[0], list, 48 * MIB, BATCH * 64, &state);
    access_some(&sites[1], rows, 24 * MIB, BATCH * 64, &state);
    free(list);
    char *results = filled(&sites[2], values(8 * MIB), 8 * MIB);
    while (now_ns() < until_ns) {
        read_some(&sites[1], rows, 24 * MIB, BATCH * 2, &state);
        access_some(&sites[2], results, 8 * MIB, BATCH * 8, &state);
    }
    SAY();
}

/* The program gives out pieces of 4 KiB of a pool itself; those of the first half are hot. */
static void own_pool(void) {
    SITES({"hot@0-16", 16 * MIB, 0}, {"hot@16-32", 16 * MIB, 0}, {"cold", 16 * MIB, 0});
    uint64_t state = stream(0);
    char *pool = filled(&sites[0], hot(32 * MIB), 16 * MIB);
    filled(&sites[1], pool + 16 * MIB, 16 * MIB);
    char *other = filled(&sites[2], cold(16 * MIB), 16 * MIB);
    while (now_ns() < until_ns) {
        for (int i = 0; i < 8; i++) {
            char *piece = pool + random_below(&state, 4096) * 4096;
            access_some(&sites[0], piece, 4096, BATCH, &state);
        }
        access_some(&sites[1], pool + 16 * MIB, 16 * MIB, BATCH, &state);
        access_some(&sites[2], other, 16 * MIB, BATCH * 2, &state);
    }
    SAY();
}

static uint64_t part_shares[8];

static void *one_part(void *number) {
    size_t which = (size_t)(uintptr_t)number;
    uint64_t state = stream(which), most = part_shares[0];
    while (now_ns() < until_ns) {
        access_some(&parts[which], part_arrays[which], parts[which].bytes,
                    BATCH * part_shares[which], &state);
        for (uint64_t i = 0; i < BATCH * 4 * (most - part_shares[which]); i++)
            next_random(&state);
        sched_yield();
    }
    return NULL;
}

/* Threads at an array each, with these shares. */
static void unequal(size_t count, const uint64_t *shares, const uint64_t *mib) {
    pthread_t ids[8];
    memcpy(part_shares, shares, count * sizeof(*shares));
    make_parts(count, mib);
    for (size_t i = 0; i < count; i++)
        if (pthread_create(&ids[i], NULL, one_part, (void *)(uintptr_t)i))
            exit(3);
    for (size_t i = 0; i < count; i++)
        pthread_join(ids[i], NULL);
    say(parts, count);
}

static void threads_2(void) {
    unequal(2, (const uint64_t[]){80, 20}, (const uint64_t[]){16, 16});
}

static void threads_8(void) {
    unequal(8, (const uint64_t[]){30, 20, 15, 12, 10, 7, 4, 2},
            (const uint64_t[]){4, 4, 8, 8, 4, 4, 8, 8});
}

#define SLOTS 16u /* one for each MiB that waits: two producers seldom wait */
static _Atomic(char *) slots[SLOTS];
static struct site made[] = {{"hot", SLOTS *MIB, 0}, {"cold", 32 * MIB, 0}};

static void *produce(void *number) {
    for (size_t turn = (size_t)(uintptr_t)number; now_ns() < until_ns; turn += 2) {
        char *none = NULL, *buffer = filled(&made[0], hot(MIB), MIB);
        if (!atomic_compare_exchange_strong(&slots[turn % SLOTS], &none, buffer)) {
            free(buffer);
            sched_yield();
        }
    }
    return NULL;
}

/* Two threads make buffers of a MiB, one uses them beside a table. */
static void producers(void) {
    pthread_t ids[2];
    uint64_t state = stream(9);
    char *table = filled(&made[1], cold(32 * MIB), 32 * MIB);
    for (uintptr_t i = 0; i < 2; i++)
        if (pthread_create(&ids[i], NULL, produce, (void *)i))
            exit(3);
    for (size_t turn = 0; now_ns() < until_ns; turn++) {
        char *buffer = atomic_exchange(&slots[turn % SLOTS], NULL);
        if (!buffer)
            continue;
        access_some(&made[0], buffer, MIB, MIB / LINE * 2, &state);
        access_some(&made[1], table, 32 * MIB, BATCH * 4, &state);
        free(buffer);
    }
    pthread_join(ids[0], NULL);
    pthread_join(ids[1], NULL);
    say(made, 2);
}

/* Lives from a tenth of a millisecond to thirty, those of one site accessed four times as often. */
static void lives_mixed(void) {
    SITES({"hot", 2 * MIB, 0}, {"cold", 2 * MIB, 0});
    uint64_t state = stream(0);
    while (now_ns() < until_ns) {
        bool is_hot = random_below(&state, 5) != 0;
        uint64_t life_ns = 100000 + next_random(&state) % 30000000;
        char *one = is_hot ? hot(2 * MIB) : cold(2 * MIB);
        access_until(&sites[!is_hot], one, 2 * MIB, now_ns() + life_ns, &state);
        free(one);
    }
    SAY();
}

/* A list whose nodes are lines in random order, followed all the time; another one now and then. */
static void chases(void) {
    SITES({"hot", 16 * MIB, 0}, {"cold", 16 * MIB, 0});
    uint64_t state = stream(0), lines = 16 * MIB / LINE, at[2] = {0, 0};
    char *lists[] = {hot(16 * MIB), cold(16 * MIB)};
    for (int list = 0; list < 2; list++) {
        filled(&sites[list], lists[list], 16 * MIB);
        for (uint64_t i = 0; i < lines; i++)
            *(uint64_t *)(lists[list] + i * LINE) = i;
        for (uint64_t i = lines - 1; i > 0; i--) { // one cycle through all lines (Sattolo)
            uint64_t other = random_below(&state, i);
            uint64_t *a = (uint64_t *)(lists[list] + i * LINE);
            uint64_t *b = (uint64_t *)(lists[list] + other * LINE), kept = *a;
            *a = *b;
            *b = kept;
        }
        sites[list].accesses += 4 * lines;
    }
    while (now_ns() < until_ns)
        for (int list = 0; list < 2; list++)
            for (uint64_t i = 0; i < (list ? BATCH : BATCH * 12); i++, sites[list].accesses++)
                at[list] = *(volatile uint64_t *)(lists[list] + at[list] * LINE);
    SAY();
}

/* A large array is written from begin to end again and again, a small one at random. */
static void sequential(void) {
    SITES({"hot", 8 * MIB, 0}, {"cold", 64 * MIB, 0});
    uint64_t state = stream(0), at = 0;
    char *small = filled(&sites[0], hot(8 * MIB), 8 * MIB);
    char *large = filled(&sites[1], cold(64 * MIB), 64 * MIB);
    while (now_ns() < until_ns) {
        access_some(&sites[0], small, 8 * MIB, BATCH * 4, &state);
        for (uint64_t i = 0; i < BATCH * 4; i++, at = (at + LINE) % (64 * MIB))
            *(volatile uint64_t *)(large + at) += i;
        sites[1].accesses += BATCH * 4;
    }
    SAY();
}

/* One array is only read, the other one written a third as often. */
static void read_one_write_other(void) {
    SITES({"hot", 24 * MIB, 0}, {"warm", 24 * MIB, 0});
    uint64_t state = stream(0);
    char *one = filled(&sites[0], hot(24 * MIB), 24 * MIB);
    char *two = filled(&sites[1], warm(24 * MIB), 24 * MIB);
    while (now_ns() < until_ns) {
        read_some(&sites[0], one, 24 * MIB, BATCH * 3, &state);
        access_some(&sites[1], two, 24 * MIB, BATCH, &state);
    }
    SAY();
}

/* Of one site's objects the small ones are hot, of another's none. */
static void sizes(void) {
    SITES({"hot", 16 * MIB + 24 * MIB, 0}, {"cold", 16 * MIB, 0});
    uint64_t state = stream(0);
    char *small[16];
    for (int i = 0; i < 16; i++)
        small[i] = filled(&sites[0], hot(MIB), MIB);
    char *large = filled(&sites[0], hot(24 * MIB), 24 * MIB);
    char *other = filled(&sites[1], cold(16 * MIB), 16 * MIB);
    while (now_ns() < until_ns) {
        for (int i = 0; i < 16; i++)
            access_some(&sites[0], small[i], MIB, BATCH, &state);
        access_some(&sites[0], large, 24 * MIB, BATCH, &state);
        access_some(&sites[1], other, 16 * MIB, BATCH, &state);
    }
    SAY();
}

/* Eight arrays whose accesses follow Zipf's law. */
static void zipf(void) {
    uint64_t state = stream(0);
    make_parts(8, (const uint64_t[]){4, 8, 2, 8, 16, 4, 8, 4});
    while (now_ns() < until_ns)
        for (uint64_t i = 0; i < 8; i++)
            access_some(&parts[i], part_arrays[i], parts[i].bytes, BATCH * 8 / (i + 1), &state);
    say(parts, 8);
}

/* What is hot changes once, after two thirds of the time. */
static void long_phases(void) {
    SITES({"hot", 16 * MIB, 0}, {"warm", 16 * MIB, 0}, {"cold", 32 * MIB, 0});
    uint64_t state = stream(0), now = now_ns();
    char *one = filled(&sites[0], hot(16 * MIB), 16 * MIB);
    char *two = filled(&sites[1], warm(16 * MIB), 16 * MIB);
    filled(&sites[2], cold(32 * MIB), 32 * MIB);
    access_until(&sites[0], one, 16 * MIB, now + (until_ns - now) / 3 * 2, &state);
    access_until(&sites[1], two, 16 * MIB, until_ns, &state);
    SAY();
}

/* A program that waits nine tenths of the time. */
static void sleepy(void) {
    SITES({"hot", 16 * MIB, 0}, {"cold", 16 * MIB, 0});
    uint64_t state = stream(0);
    char *array = filled(&sites[0], hot(16 * MIB), 16 * MIB);
    char *other = filled(&sites[1], cold(16 * MIB), 16 * MIB);
    while (now_ns() < until_ns) {
        access_until(&sites[0], array, 16 * MIB, now_ns() + 500000, &state);
        access_some(&sites[1], other, 16 * MIB, BATCH * 4, &state);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    SAY();
}

const struct pattern more_patterns[] = {
    {"filled-once", filled_once, false},
    {"reads", only_reads, false},
    {"mixture-1", mixture_1, false},
    {"mixture-2", mixture_2, false},
    {"head", hot_head, true},
    {"tail", hot_tail, true},
    {"strides", strides, true},
    {"vectors", vectors, true},
    {"graph", graph, true},
    {"pool", own_pool, true},
    {"producers", producers, true},
    {"threads-2", threads_2, true},
    {"threads-8", threads_8, true},
    {"lives-mixed", lives_mixed, true},
    {"chase", chases, true},
    {"sequential", sequential, true},
    {"read-one-write-other", read_one_write_other, true},
    {"sizes", sizes, true},
    {"zipf", zipf, true},
    {"long-phases", long_phases, true},
    {"sleepy", sleepy, true},
    {"mixture-3", mixture_3, true},
    {"mixture-4", mixture_4, true},
    {"mixture-5", mixture_5, true},
};
const size_t more_patterns_count = sizeof(more_patterns) / sizeof(*more_patterns);
