/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * bench-heaps.c: programs with small heaps, and what any program cost.
 * In: the name of a pattern, or `cost` and a command. Out: nothing of a pattern; of `cost`,
 * "cpu_ns peak_kib" of the command and its children on descriptor 3.
 * Knows nothing of allocators; every pattern is deterministic but for the interleaving of threads.
 *
 * The kernel counts what a process had resident before its exec into the peak of the program, so
 * `cost` must be smaller than whatever it measures: it allocates nothing.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t u64;

static u64 next_random(u64 *state) { /* xorshift64* */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

static size_t below(u64 *state, size_t n) {
    return (size_t)((next_random(state) >> 32) * n >> 32);
}

/* Filled, as a program fills what it asks for: memory counts when it is touched. */
static void *filled(size_t bytes) {
    char *p = malloc(bytes);
    if (!p)
        abort();
    return memset(p, 1, bytes);
}

#define THREADS 8 /* chosen: more than there are CPUs, as in servers */

static void in_threads(void *(*work)(void *)) {
    pthread_t threads[THREADS];
    for (u64 i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* ---- servers: threads with objects of 8 to 16,000 bytes, which every other turn they hand to
 * each other to be freed. Small ones prevail. 7 MiB. ---------------------------------- */

#define SERVED 300 /* objects of a thread */
#define BATCH 50   /* replaced at a time */
#define TURNS 3000

/* A thread's inbox has room for one parcel, so that a thread that sleeps holds back little. */
static _Atomic(void **) inbox[THREADS];

static void free_all(void **objects, size_t count) {
    for (size_t i = 0; i < count; i++)
        free(objects[i]);
}

static void empty_inbox(size_t mine) {
    void **parcel = atomic_exchange(&inbox[mine], NULL);
    if (parcel)
        free_all(parcel, BATCH);
    free(parcel);
}

static void hand_over(void **objects, size_t to) {
    void **parcel = filled(BATCH * sizeof *parcel), **none = NULL;
    memcpy(parcel, objects, BATCH * sizeof *parcel);
    if (atomic_compare_exchange_strong(&inbox[to], &none, parcel))
        return;
    free_all(parcel, BATCH);
    free(parcel);
}

static size_t served_size(u64 *state) {
    size_t one = below(state, 15992), other = below(state, 15992);
    return 8 + below(state, one < other ? other - one : one - other);
}

static void *serve(void *seed) {
    u64 state = (u64)(uintptr_t)seed;
    size_t mine = state - 1;
    void **objects = calloc(SERVED, sizeof *objects);
    for (size_t turn = 0, at = 0; turn < TURNS; turn++, at = (at + BATCH) % SERVED) {
        if (turn % 2)
            hand_over(&objects[at], (mine + 1) % THREADS);
        else
            free_all(&objects[at], BATCH);
        for (int i = 0; i < BATCH; i++)
            objects[at + (size_t)i] = filled(served_size(&state));
        empty_inbox(mine);
    }
    free_all(objects, SERVED);
    free(objects);
    return NULL;
}

static void servers(void) {
    in_threads(serve);
    for (size_t i = 0; i < THREADS; i++)
        empty_inbox(i);
}

/* ---- stress: threads that come and go; each allocates items of mixed sizes, keeps some, and
 * exchanges some with a table that all share. 20 MiB. ------------------------------------------ */

/* Chosen: of 20 MiB in all, and as long as the others. */
#define SHARED 1000 /* chosen */
#define WAVES 25    /* chosen */
#define ITEMS 5000  /* chosen: slots of a thread */

static _Atomic(void *) shared[SHARED];

/* Words from 8 bytes up; one in a hundred is 10 times as large, one in a thousand 100 times. */
static void *item(u64 *state) {
    u64 rare = below(state, 1000);
    size_t words = 1 + below(state, 32) + below(state, 8);
    return filled(8 * words * (rare == 0 ? 100 : rare < 10 ? 10 : 1));
}

static void *stress_wave(void *seed) {
    u64 state = (u64)(uintptr_t)seed * 0x9e3779b97f4a7c15ull;
    void **items = calloc(ITEMS, sizeof *items), **kept = calloc(ITEMS, sizeof *kept);
    size_t keeps = 0;
    for (size_t i = 0; i < 8 * ITEMS; i++) {
        size_t at = below(&state, ITEMS);
        if (below(&state, 4) == 0 && keeps < ITEMS) {
            kept[keeps++] = item(&state);
        } else if (below(&state, 4) == 0) {
            items[at] = atomic_exchange(&shared[below(&state, SHARED)], items[at]);
        } else {
            free(items[at]);
            items[at] = item(&state);
        }
    }
    for (int i = 0; i < ITEMS; i++)
        free(items[i]), free(kept[i]);
    free(items), free(kept);
    return NULL;
}

static void stress(void) {
    for (int wave = 0; wave < WAVES; wave++) {
        in_threads(stress_wave);
        for (int i = wave % 2; i < SHARED; i += 2)
            free(atomic_exchange(&shared[i], NULL));
    }
    for (int i = 0; i < SHARED; i++)
        free(atomic_exchange(&shared[i], NULL));
}

/* ---- minimiser: covers, arrays of cubes of a few words, which each pass splits by a bit, again
 * and again, and joins; arrays of pointers for each split. Some words to 300 KiB. 6 MiB. -------*/

struct cover {
    size_t count, room, words;
    unsigned *cubes;
};

static struct cover *new_cover(size_t words, size_t room) {
    struct cover *cover = filled(sizeof *cover);
    *cover = (struct cover){0, room, words, malloc(room * words * sizeof(unsigned))};
    return cover;
}

static void add_cube(struct cover *to, const unsigned *cube) {
    if (to->count == to->room) {
        to->room += to->room / 2 + 1;
        to->cubes = realloc(to->cubes, to->room * to->words * sizeof(unsigned));
        if (!to->cubes)
            abort();
    }
    memcpy(&to->cubes[to->count++ * to->words], cube, to->words * sizeof(unsigned));
}

static void free_cover(struct cover *cover) {
    free(cover->cubes);
    free(cover);
}

#define LEAF 6 /* cubes of a cover that is not split */

/* A new cover of those cubes, without some. */
static struct cover *minimise(unsigned **cubes, size_t count, size_t words, unsigned bit) {
    struct cover *result = new_cover(words, 4);
    if (count <= LEAF) {
        for (size_t i = 0; i < count; i++)
            if (cubes[i][0] % 97)
                add_cube(result, cubes[i]);
        return result;
    }
    unsigned **half = filled((count + 3) * sizeof *half);
    for (unsigned side = 0; side < 2; side++) {
        size_t in_half = 0;
        for (size_t i = 0; i < count; i++)
            if ((cubes[i][bit / 32 % words] >> bit % 32 & 1) == side)
                half[in_half++] = cubes[i];
        struct cover *part = minimise(half, in_half, words, bit + 7);
        for (size_t i = 0; i < part->count; i++)
            add_cube(result, &part->cubes[i * words]);
        free_cover(part);
    }
    free(half);
    return result;
}

static struct cover *pass(struct cover *all, unsigned bit) {
    unsigned **cubes = filled((all->count + 3) * sizeof *cubes);
    for (size_t i = 0; i < all->count; i++)
        cubes[i] = &all->cubes[i * all->words];
    struct cover *result = minimise(cubes, all->count, all->words, bit);
    free(cubes);
    free_cover(all);
    return result;
}

#define FUNCTIONS 30 /* chosen: results of 6 MiB in all */

static void minimiser(void) {
    u64 state = 3;
    struct cover *results[FUNCTIONS];
    for (size_t function = 0; function < FUNCTIONS; function++) {
        size_t words = 3 + function % 12, count = 500 + below(&state, 6000);
        struct cover *cover = new_cover(words, 8);
        unsigned cube[16];
        for (size_t i = 0; i < count; i++) {
            for (size_t w = 0; w < words; w++)
                cube[w] = (unsigned)next_random(&state);
            add_cube(cover, cube);
        }
        for (unsigned bit = 0; bit < 12; bit++)
            cover = pass(cover, bit);
        results[function] = cover;
    }
    for (size_t i = 0; i < FUNCTIONS; i++)
        free_cover(results[i]);
}

/* ---- factors: numbers of a few words, each result a new one, and a table of relations that stays.
 * 3 MiB. --------------------------------------------------------------------------------------- */

struct number {
    unsigned short references, words;
    unsigned digits[];
};

static struct number *number(size_t words) {
    struct number *n = malloc(sizeof *n + words * sizeof n->digits[0]);
    if (!n)
        abort();
    n->references = 1;
    n->words = (unsigned short)words;
    return n;
}

static struct number *product(const struct number *a, unsigned factor, unsigned add) {
    struct number *n = number((size_t)a->words + 1);
    u64 carry = add;
    for (size_t i = 0; i < a->words; i++, carry >>= 32)
        n->digits[i] = (unsigned)(carry += (u64)a->digits[i] * factor);
    n->digits[a->words] = (unsigned)carry;
    return n;
}

static struct number *quotient(const struct number *a, unsigned divisor, unsigned *remainder) {
    size_t words = a->words > 8 ? 8 : a->words;
    struct number *n = number(words);
    u64 rest = 0;
    for (size_t i = words; i-- > 0;) {
        rest = rest << 32 | a->digits[i];
        n->digits[i] = (unsigned)(rest / divisor);
        rest %= divisor;
    }
    *remainder = (unsigned)rest;
    return n;
}

static void factors(void) {
    static struct number *relations[20000];
    u64 state = 4;
    struct number *n = number(8);
    memset(n->digits, 0x5a, 8 * sizeof n->digits[0]);
    for (size_t i = 0; i < 6000000; i++) {
        unsigned rest, factor = 3 + (unsigned)below(&state, 65000);
        struct number *next = product(n, factor, (unsigned)i);
        struct number *reduced = quotient(next, factor | 1, &rest);
        free(next);
        if (rest % 16 == 0) {
            size_t at = below(&state, 20000);
            free(relations[at]);
            relations[at] = n;
        } else {
            free(n);
        }
        n = reduced;
    }
}

/* ---- cost ------------------------------------------------------------------------------------ */

static u64 nanoseconds(struct timeval t) {
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_usec * 1000;
}

static int cost(char **command) {
    pid_t child = vfork();
    if (child == 0) {
        execvp(command[0], command);
        _exit(127);
    }
    int status;
    struct rusage usage;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 2;
    getrusage(RUSAGE_CHILDREN, &usage);
    dprintf(3, "%llu %ld\n",
            (unsigned long long)(nanoseconds(usage.ru_utime) + nanoseconds(usage.ru_stime)),
            usage.ru_maxrss);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static const struct {
    const char *name;
    void (*run)(void);
} patterns[] = {
    {"servers", servers},
    {"stress", stress},
    {"minimiser", minimiser},
    {"factors", factors},
};

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "cost") == 0)
        return cost(argv + 2);
    for (size_t i = 0; argc == 2 && i < sizeof patterns / sizeof *patterns; i++)
        if (strcmp(argv[1], patterns[i].name) == 0) {
            patterns[i].run();
            return 0;
        }
    fprintf(stderr, "usage: bench-heaps PATTERN | bench-heaps cost COMMAND...\n");
    return 2;
}
