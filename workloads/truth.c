/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * truth.c: programs of which it is known what they access, for `./x bench truth`.
 * In: the number of a pattern, how many milliseconds, a seed. Out: for each site a line
 * `truth SITE ACCESSES BYTES`; of a range of a site `truth SITE@FROM-TO ACCESSES BYTES`, in MiB.
 * Each access is at a random cache line. Knows nothing of how it is observed.
 *
 * A site is a function that allocates, and bears the name of what it allocates. The patterns are in
 * the table at the end, and in that of truth_more.c.
 */
#include "truth.h"

uint64_t seed, until_ns;

/* Two sites have one address in turns; one is accessed, the other is not touched. */
static void turns(void) {
    SITES({"hot", 8 * MIB, 0}, {"cold", 8 * MIB, 0});
    uint64_t state = stream(0);
    while (now_ns() < until_ns) {
        char *one = hot(8 * MIB);
        access_until(&sites[0], one, 8 * MIB, now_ns() + TURN_NS, &state);
        free(one);
        char *other = cold(8 * MIB);
        idle_until(now_ns() + TURN_NS);
        free(other);
    }
    SAY();
}

#define TWELVE(DO)                                                                                 \
    DO(array0)                                                                                     \
    DO(array1)                                                                                     \
    DO(array2) DO(array3) DO(array4) DO(array5) DO(array6) DO(array7) DO(array8) DO(array9)        \
        DO(array10) DO(array11)
TWELVE(ALLOCATES)

/* Twelve equal arrays, born one after the other. */
static void equal(void) {
#define NAMED(name) {#name, 8 * MIB, 0},
    SITES(TWELVE(NAMED));
#define CALLED(name) name,
    char *(*const make[])(uint64_t) = {TWELVE(CALLED)};
    uint64_t state = stream(0);
    for (size_t turn = 0; now_ns() < until_ns || turn % 12; turn++) {
        char *array = make[turn % 12](8 * MIB);
        access_until(&sites[turn % 12], array, 8 * MIB, now_ns() + TURN_NS, &state);
        free(array);
    }
    SAY();
}

/* The hot 8 MiB lie in the middle of 64. */
static void middle(void) {
    SITES({"hot@0-24", 24 * MIB, 0}, {"hot@24-32", 8 * MIB, 0}, {"hot@32-64", 32 * MIB, 0});
    uint64_t state = stream(0);
    char *array = hot(64 * MIB);
    filled(&sites[0], array, 24 * MIB);
    filled(&sites[1], array + 24 * MIB, 8 * MIB);
    filled(&sites[2], array + 32 * MIB, 32 * MIB);
    while (now_ns() < until_ns) {
        access_some(&sites[1], array + 24 * MIB, 8 * MIB, BATCH * 14, &state);
        access_some(&sites[0], array, 24 * MIB, BATCH, &state);
        access_some(&sites[2], array + 32 * MIB, 32 * MIB, BATCH, &state);
    }
    SAY();
}

static char fixed[16 * MIB];

/* Static data is hot, an allocation is cold. */
static void static_data(void) {
    SITES({"fixed", sizeof(fixed), 0}, {"cold", 16 * MIB, 0});
    uint64_t state = stream(0);
    char *other = filled(&sites[1], cold(16 * MIB), 16 * MIB);
    filled(&sites[0], fixed, sizeof(fixed));
    while (now_ns() < until_ns) {
        access_some(&sites[0], fixed, sizeof(fixed), BATCH * 9, &state);
        access_some(&sites[1], other, 16 * MIB, BATCH, &state);
    }
    SAY();
}

SITE char *mapped(uint64_t bytes, int fd) {
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (memory == MAP_FAILED)
        exit(3);
    return memory;
}

static void hot_mapping(int fd) {
    SITES({"mapped", 24 * MIB, 0}, {"cold", 16 * MIB, 0});
    uint64_t state = stream(0);
    char *array = filled(&sites[0], mapped(24 * MIB, fd), 24 * MIB);
    char *other = filled(&sites[1], cold(16 * MIB), 16 * MIB);
    while (now_ns() < until_ns) {
        access_some(&sites[0], array, 24 * MIB, BATCH * 9, &state);
        access_some(&sites[1], other, 16 * MIB, BATCH, &state);
    }
    SAY();
}

/* Memory that the program maps itself. */
static void own_mapping(void) {
    hot_mapping(-1);
}

/* Memory that may be shared with other processes. */
static void shared(void) {
    int fd = memfd_create("shared", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 24 * MIB))
        exit(3);
    hot_mapping(fd);
}

/* A child that allocates nothing accesses what its parent made. */
static void child(void) {
    SITES({"hot", 16 * MIB, 0}, {"cold", 16 * MIB, 0});
    uint64_t state = stream(0), accesses = 0;
    char *array = filled(&sites[0], hot(16 * MIB), 16 * MIB);
    char *other = filled(&sites[1], cold(16 * MIB), 16 * MIB);
    int ends[2];
    if (pipe(ends))
        exit(3);
    pid_t pid = fork();
    if (pid == 0) {
        access_until(&sites[0], array, 16 * MIB, until_ns, &state);
        accesses = sites[0].accesses;
        _exit(write(ends[1], &accesses, sizeof(accesses)) != sizeof(accesses));
    }
    if (read(ends[0], &accesses, sizeof(accesses)) != sizeof(accesses))
        exit(3);
    if (waitpid(pid, NULL, 0) != pid)
        exit(3);
    sites[0].accesses = accesses;
    access_some(&sites[1], other, 16 * MIB, BATCH, &state);
    SAY();
}

/* 12.8 MB of each kind: more than caches of one core have. */
#define NODES 200000u
struct node {
    uint64_t value[8];
};
ALLOCATES(hot_node)
ALLOCATES(cold_node)

/* Small hot nodes beside small cold ones of another site. */
static void nodes(void) {
    static struct node *hots[NODES], *colds[NODES];
    uint64_t bytes = NODES * sizeof(struct node), state = stream(0);
    struct site sites[] = {{"hot_node", bytes, 0}, {"cold_node", bytes, 0}};
    for (size_t i = 0; i < NODES; i++) {
        hots[i] = (struct node *)filled(&sites[0], hot_node(sizeof(struct node)), LINE);
        colds[i] = (struct node *)filled(&sites[1], cold_node(sizeof(struct node)), LINE);
    }
    while (now_ns() < until_ns) {
        for (uint64_t i = 0; i < BATCH; i++)
            *(volatile uint64_t *)hots[next_random(&state) % NODES]->value += i;
        sites[0].accesses += BATCH;
    }
    access_some(&sites[1], (char *)colds[0], LINE, 1, &state);
    SAY();
}

static struct site four[] = {
    {"hot", 8 * MIB, 0}, {"warm", 8 * MIB, 0}, {"cool", 8 * MIB, 0}, {"cold", 8 * MIB, 0}};
static char *four_arrays[4];

/* Batches of a thread's turn; the others compute meanwhile. */
static const uint64_t four_parts[] = {53, 27, 13, 7};

static void *one_of_four(void *number) {
    size_t which = (size_t)(uintptr_t)number;
    uint64_t state = stream(which);
    while (now_ns() < until_ns) {
        access_some(&four[which], four_arrays[which], 8 * MIB, BATCH * four_parts[which], &state);
        for (uint64_t i = 0; i < BATCH * 4 * (53 - four_parts[which]); i++)
            next_random(&state);
        sched_yield();
    }
    return NULL;
}

/* Four threads access an array each, 53, 27, 13 and 7%. */
static void threads(void) {
    char *(*const make[])(uint64_t) = {hot, warm, cool, cold};
    pthread_t ids[4];
    for (size_t i = 0; i < 4; i++)
        four_arrays[i] = filled(&four[i], make[i](8 * MIB), 8 * MIB);
    for (size_t i = 0; i < 4; i++)
        if (pthread_create(&ids[i], NULL, one_of_four, (void *)(uintptr_t)i))
            exit(3);
    for (size_t i = 0; i < 4; i++)
        pthread_join(ids[i], NULL);
    say(four, 4);
}

/* Two arrays, nine to one. */
static void plain(void) {
    SITES({"hot", 16 * MIB, 0}, {"cold", 16 * MIB, 0});
    uint64_t state = stream(0);
    char *other = filled(&sites[1], cold(16 * MIB), 16 * MIB);
    char *array = filled(&sites[0], hot(16 * MIB), 16 * MIB);
    while (now_ns() < until_ns) {
        access_some(&sites[0], array, 16 * MIB, BATCH * 9, &state);
        access_some(&sites[1], other, 16 * MIB, BATCH, &state);
    }
    SAY();
}

/* The same for a fifth of a second. */
static void brief(void) {
    until_ns = sooner(until_ns, now_ns() + 200 * UINT64_C(1000000));
    plain();
}

SITE char *grown(char *memory, uint64_t bytes) {
    char *larger = realloc(memory, bytes);
    if (!larger)
        exit(3);
    return larger;
}

/* An array that grows by realloc to 32 MiB, and is accessed while it does. */
static void growth(void) {
    SITES({"grown", 32 * MIB, 0}, {"cold", 16 * MIB, 0});
    uint64_t state = stream(0), bytes = MIB;
    char *other = filled(&sites[1], cold(16 * MIB), 16 * MIB);
    char *array = filled(&sites[0], grown(NULL, bytes), bytes);
    while (now_ns() < until_ns) {
        access_some(&sites[0], array, bytes, BATCH * 9, &state);
        access_some(&sites[1], other, 16 * MIB, BATCH, &state);
        if (bytes < 32 * MIB) {
            array = grown(array, bytes + MIB);
            filled(&sites[0], array + bytes, MIB);
            bytes += MIB;
        }
    }
    SAY();
}

/* A hot array in memory that a cold one had before. */
static void reused(void) {
    SITES({"hot", 16 * MIB, 0}, {"cold", 16 * MIB, 0}, {"warm", 16 * MIB, 0});
    uint64_t state = stream(0);
    char *other = filled(&sites[2], warm(16 * MIB), 16 * MIB);
    char *before = filled(&sites[1], cold(16 * MIB), 16 * MIB);
    access_some(&sites[1], before, 16 * MIB, BATCH, &state);
    idle_until(now_ns() + 10 * TURN_NS);
    free(before);
    char *array = filled(&sites[0], hot(16 * MIB), 16 * MIB);
    while (now_ns() < until_ns) {
        access_some(&sites[0], array, 16 * MIB, BATCH * 8, &state);
        access_some(&sites[2], other, 16 * MIB, BATCH, &state);
    }
    SAY();
}

#define QUEUED 8u           /* enough that neither side waits long */
#define BUFFER (256u << 10) /* bytes: an object that lives for some hundred microseconds */
static _Atomic(char *) queue[QUEUED];
static struct site piped[] = {{"hot", QUEUED *BUFFER, 0}, {"cold", 16 * MIB, 0}};

static void *consume(void *unused) {
    uint64_t state = stream(7);
    (void)unused;
    for (size_t turn = 0;; turn++) {
        char *buffer;
        while (!(buffer = atomic_exchange(&queue[turn % QUEUED], NULL)))
            if (now_ns() > until_ns)
                return NULL;
        access_some(&piped[0], buffer, BUFFER, BUFFER / LINE * 4, &state);
        free(buffer);
    }
}

/* One thread makes buffers, another uses and frees them. */
static void pipeline(void) {
    pthread_t id;
    char *other = filled(&piped[1], cold(16 * MIB), 16 * MIB);
    uint64_t state = stream(0);
    if (pthread_create(&id, NULL, consume, NULL))
        exit(3);
    for (size_t turn = 0; now_ns() < until_ns; turn++) {
        char *none = NULL, *buffer = filled(&piped[0], hot(BUFFER), BUFFER);
        access_some(&piped[1], other, 16 * MIB, BATCH, &state);
        while (!atomic_compare_exchange_weak(&queue[turn % QUEUED], &none, buffer)) {
            none = NULL;
            if (now_ns() > until_ns)
                break;
        }
    }
    pthread_join(id, NULL);
    say(piped, 2);
}

/* Two arrays are hot in turns of a quarter of a second, one of them twice as long. */
static void phases(void) {
    SITES({"hot", 16 * MIB, 0}, {"warm", 16 * MIB, 0}, {"cold", 16 * MIB, 0});
    uint64_t state = stream(0), quarter = 250 * UINT64_C(1000000);
    char *one = filled(&sites[0], hot(16 * MIB), 16 * MIB);
    char *two = filled(&sites[1], warm(16 * MIB), 16 * MIB);
    char *three = filled(&sites[2], cold(16 * MIB), 16 * MIB);
    while (now_ns() < until_ns) {
        access_until(&sites[0], one, 16 * MIB, sooner(until_ns, now_ns() + 2 * quarter), &state);
        access_until(&sites[1], two, 16 * MIB, sooner(until_ns, now_ns() + quarter), &state);
        access_some(&sites[2], three, 16 * MIB, BATCH, &state);
    }
    SAY();
}

/* Objects of 1 MiB that live for `life_ns`: those of one site are accessed, of another not. */
static void lives_of(uint64_t life_ns) {
    SITES({"hot", MIB, 0}, {"cold", MIB, 0});
    uint64_t state = stream(0);
    while (now_ns() < until_ns) {
        char *one = hot(MIB);
        access_until(&sites[0], one, MIB, now_ns() + life_ns, &state);
        free(one);
        one = cold(MIB);
        idle_until(now_ns() + life_ns);
        free(one);
    }
    SAY();
}

static void lives_100us(void) {
    lives_of(100000);
}

static void lives_10ms(void) {
    lives_of(10000000);
}

static void lives_1ms(void) {
    lives_of(1000000);
}

static const struct pattern patterns[] = {
    {"turns", turns, false},
    {"equal", equal, false},
    {"middle", middle, false},
    {"static", static_data, false},
    {"shared", shared, false},
    {"child", child, false},
    {"nodes", nodes, false},
    {"threads", threads, false},
    {"plain", plain, false},
    {"brief", brief, false},
    {"mapping", own_mapping, false},
    {"growth", growth, false},
    {"reused", reused, false},
    {"pipeline", pipeline, false},
    {"phases", phases, false},
    {"lives-1ms", lives_1ms, false},
    {"lives-100us", lives_100us, false},
    {"lives-10ms", lives_10ms, true},
};

#define PATTERNS (sizeof(patterns) / sizeof(*patterns))

static void list(const struct pattern *some, size_t count) {
    for (size_t i = 0; i < count; i++)
        printf("pattern %s%s\n", some[i].name, some[i].is_held_out ? " held-out" : "");
}

int main(int argc, char **argv) {
    struct option options[] = {
        {"pattern", 0, "its number in the list"},
        {"ms", 2000, "milliseconds"},
        {"seed", 1, "of the random addresses"},
    };
    read_options(argc, argv, options, 3);
    size_t which = options[0].value;
    if (which >= PATTERNS + more_patterns_count) {
        list(patterns, PATTERNS);
        list(more_patterns, more_patterns_count);
        return 0;
    }
    seed = options[2].value;
    until_ns = now_ns() + options[1].value * UINT64_C(1000000);
    (which < PATTERNS ? &patterns[which] : &more_patterns[which - PATTERNS])->run();
    return 0;
}
