/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * probe: what memory takes and passes, seen by a program: latency by footprint, independent chains,
 * latency under load, the kernels of STREAM.
 * In: which, how many threads; numactl says where they run and where memory is. Out: one line a
 * figure: its name, numbers of its setting, then nanoseconds a load and GB/s of all threads.
 * Knows nothing of machines; what should come out is the reader's business.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Bytes of a cache line, and of larger units. */
#define LINE_BYTES 64
#define HUGE_BYTES (UINT64_C(2) << 20)
#define MIB (UINT64_C(1) << 20)
/* As many threads and chains as the published measurements have. */
#define THREADS_MAX 16
#define CHAINS_MAX 16

/* Each thread's memory: four times the shared cache of 4 MiB for each purpose, so that its
 * replacement keeps nothing from one round to the next. */
#define RING_BYTES (16 * MIB)
#define IDLE_BYTES (8 * MIB)
#define STREAMS 4
#define STREAM_BYTES (4 * MIB)
#define ARRAY_BYTES (8 * MIB)

/* Loads of a chase and lines that are timed at once, and lines that pass before: enough to fill the
 * shared cache with what this setting leaves in it. Each figure is the median of some such rounds,
 * so that the kernel's own work in one of them does not count. */
#define TIMED_LOADS 4000
#define TIMED_LINES 8000
#define WARM_LINES 80000
#define ROUNDS 3
/* Lines before a setting that differs little from the one before it. */
#define NEXT_LINES 30000

struct link {
    struct link *next;
    char padding[LINE_BYTES - sizeof(struct link *)];
};

struct thread {
    int index;
    struct link *ring;
    struct link *at;
    char *streams;
    uint64_t offset;
    double ns, gb_s;
};

/* One setting of the load beside a chase: `chases` loads one after the other, then `groups` times a
 * line of each stream, of which `stores` are written, then a pause. */
struct load {
    uint64_t chases, groups, stores, pause;
};

static int threads;
static atomic_int arrived, finished;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* In huge OS pages, so that its lines lie in the caches' sets evenly. */
static void *memory(uint64_t bytes) {
    char *raw = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                     -1, 0);
    if (raw == MAP_FAILED) {
        fail("mmap");
    }
    char *aligned = (char *)(((uintptr_t)raw + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1));
    if (madvise(aligned, bytes, MADV_HUGEPAGE) != 0) {
        fail("madvise");
    }
    for (uint64_t at = 0; at < bytes; at += 4096) {
        ((volatile char *)aligned)[at] = 0;
    }
    return aligned;
}

static uint64_t random_below(uint64_t *state, uint64_t bound) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (*state * UINT64_C(0x2545f4914f6cdd1d) >> 32) * bound >> 32;
}

/* One cycle through all blocks of `lines` lines in random order; within a block in an order without
 * a stride. Blocks of several lines are for memories that move no less. Returns what was written
 * first, which the caches have lost since. */
static struct link *make_ring(struct link *ring, uint64_t bytes, uint64_t lines) {
    static const uint64_t inside[] = {0, 2, 1, 3};
    uint64_t blocks = bytes / LINE_BYTES / lines, state = 42;
    uint32_t *order = malloc(blocks * sizeof *order);
    if (order == NULL) {
        fail("malloc");
    }
    for (uint64_t i = 0; i < blocks; i++) {
        order[i] = (uint32_t)i;
    }
    for (uint64_t i = blocks - 1; i > 0; i--) {
        uint64_t j = random_below(&state, i);
        uint32_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    struct link *last = &ring[order[blocks - 1] * lines + inside[lines - 1]];
    for (uint64_t i = 0; i < blocks; i++) {
        for (uint64_t k = 0; k < lines; k++) {
            struct link *link = &ring[order[i] * lines + inside[k]];
            last->next = link;
            last = link;
        }
    }
    struct link *first = &ring[order[0] * lines];
    free(order);
    return first;
}

static int compare(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, compare);
    return values[ROUNDS / 2];
}

/* Sixteen loads and two more instructions a turn; one turn at least. */
static struct link *walk(struct link *at, uint64_t turns) {
    __asm__ volatile("1:\n\t"
                     "mov (%0), %0\n\tmov (%0), %0\n\tmov (%0), %0\n\tmov (%0), %0\n\t"
                     "mov (%0), %0\n\tmov (%0), %0\n\tmov (%0), %0\n\tmov (%0), %0\n\t"
                     "mov (%0), %0\n\tmov (%0), %0\n\tmov (%0), %0\n\tmov (%0), %0\n\t"
                     "mov (%0), %0\n\tmov (%0), %0\n\tmov (%0), %0\n\tmov (%0), %0\n\t"
                     "dec %1\n\t"
                     "jnz 1b"
                     : "+r"(at), "+r"(turns)
                     :
                     : "memory", "cc");
    return at;
}

/* By footprint, one thread alone. */
static void levels(struct thread *self) {
    static const uint64_t kibs[] = {4, 8, 16, 64, 128, 256, 512, 2048, 3072, 8192, 16384};
    for (size_t i = 0; i < sizeof kibs / sizeof *kibs; i++) {
        uint64_t lines = kibs[i] * 1024 / LINE_BYTES, turns = lines / 16;
        make_ring(self->ring, kibs[i] * 1024, 1);
        turns = kibs[i] <= 512 ? 8192 : turns > 2048 ? 2048 : turns;
        struct link *at = walk(self->ring, 2 * (lines / 16));
        double rounds[ROUNDS];
        for (int r = 0; r < ROUNDS; r++) {
            uint64_t start = now_ns();
            at = walk(at, turns);
            rounds[r] = (double)(now_ns() - start) / (double)(turns * 16);
        }
        double ns = median(rounds);
        printf("level %lu %.3f %.4f\n", kibs[i], ns, LINE_BYTES / ns);
    }
}

/* All threads wait here for the last one. */
static void together(void) {
    static atomic_int round;
    int mine = atomic_load(&round);
    if (atomic_fetch_add(&arrived, 1) + 1 == threads) {
        atomic_store(&arrived, 0);
        atomic_store(&finished, 0);
        atomic_fetch_add(&round, 1);
    }
    while (atomic_load(&round) == mine) {
        __builtin_ia32_pause();
    }
}

static void flush(struct thread *self) {
    for (uint64_t at = 0; at < STREAMS * STREAM_BYTES; at += LINE_BYTES) {
        (void)*(volatile char *)(self->streams + at);
    }
}

/* Chains through one ring, far from one another. */
static void chain(struct thread *self, uint64_t chains) {
    struct link *at[CHAINS_MAX];
    uint64_t links = RING_BYTES / LINE_BYTES, steps = TIMED_LOADS / chains;
    at[0] = self->at;
    for (uint64_t i = 1; i < chains; i++) {
        at[i] = walk(at[i - 1], links / chains / 16);
    }
    if (chains > 1) {
        flush(self);
    }
    together();
    double rounds[ROUNDS];
    for (int r = -1; r < ROUNDS; r++) {
        uint64_t start = now_ns();
        for (uint64_t n = 0; n < steps; n++) {
            for (uint64_t i = 0; i < chains; i++) {
                at[i] = at[i]->next;
            }
        }
        /* The first round is for the caches. */
        rounds[r < 0 ? 0 : r] = (double)(now_ns() - start) / (double)(steps * chains);
    }
    self->ns = median(rounds);
    self->gb_s = LINE_BYTES / self->ns;
    volatile uintptr_t sink = 0;
    for (uint64_t i = 0; i < chains; i++) {
        sink += (uintptr_t)at[i];
    }
}

/* A line of each stream; the first `stores` of them are written. */
#define GROUP(stores)                                                                              \
    for (uint64_t g = 0; g < load.groups; g++) {                                                   \
        volatile uint64_t *line = (uint64_t *)(streams + offset);                                  \
        for (int s = 0; s < STREAMS; s++) {                                                        \
            if (s < (stores)) {                                                                    \
                line[s * STREAM_BYTES / 8] = 0;                                                    \
            } else {                                                                               \
                (void)line[s * STREAM_BYTES / 8];                                                  \
            }                                                                                      \
        }                                                                                          \
        offset = (offset + LINE_BYTES) % STREAM_BYTES;                                             \
    }

/* `turns` times one setting. */
static void run(struct thread *self, struct load load, uint64_t turns) {
    struct link *at = self->at;
    char *streams = self->streams;
    uint64_t offset = self->offset;
    for (uint64_t turn = 0; turn < turns; turn++) {
        for (uint64_t c = 0; c < load.chases; c++) {
            __asm__ volatile("mov (%0), %0" : "+r"(at) : : "memory");
        }
        switch (load.stores) {
        case 0: GROUP(0) break;
        case 1: GROUP(1) break;
        case 2: GROUP(2) break;
        default: GROUP(STREAMS) break;
        }
        for (uint64_t p = load.pause; p > 0; p--) {
            __asm__ volatile("" : : : "memory");
        }
    }
    self->at = at;
    self->offset = offset;
}

/* Time of a turn, nanoseconds, while all threads do the same. */
static double turn_ns(struct thread *self, struct load load, uint64_t before) {
    uint64_t lines = load.chases + load.groups * STREAMS, by_lines = TIMED_LINES / lines;
    uint64_t by_loads = TIMED_LOADS / load.chases;
    uint64_t turns = by_lines > by_loads ? by_lines : by_loads;
    turns = load.pause > 0 ? TIMED_LOADS / 10 : turns;
    struct load warm = load;
    warm.pause = 0;
    together();
    run(self, warm, before / lines);
    run(self, load, turns / 4);
    together();
    double rounds[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t start = now_ns();
        run(self, load, turns);
        rounds[r] = (double)(now_ns() - start) / (double)turns;
    }
    /* No thread's last turns are alone. */
    atomic_fetch_add(&finished, 1);
    while (atomic_load(&finished) < threads) {
        run(self, load, 16);
    }
    return median(rounds);
}

/* A chase is as slow as it makes a turn; beside a pause, as much as two more loads make it. */
static void loaded(struct thread *self, struct load load, uint64_t before) {
    double bytes = (double)(load.groups * (STREAMS + load.stores)) * LINE_BYTES;
    double first = turn_ns(self, load, before);
    if (load.pause == 0) {
        self->ns = first / (double)load.chases;
        self->gb_s = (bytes + (double)load.chases * LINE_BYTES) / first;
        return;
    }
    struct load more = load;
    more.chases += 2;
    double second = turn_ns(self, more, NEXT_LINES);
    self->ns = (second - first) / 2;
    self->gb_s = (2 * bytes + (double)(load.chases + more.chases) * LINE_BYTES) / (first + second);
}

static void round_of(int kernel, double *a, double *b, double *c, uint64_t n) {
    switch (kernel) {
    case 0:
        for (uint64_t i = 0; i < n; i++) {
            c[i] = a[i];
        }
        break;
    case 1:
        for (uint64_t i = 0; i < n; i++) {
            b[i] = 0.5 * c[i];
        }
        break;
    case 2:
        for (uint64_t i = 0; i < n; i++) {
            c[i] = a[i] + b[i];
        }
        break;
    default:
        for (uint64_t i = 0; i < n; i++) {
            a[i] = b[i] + 0.5 * c[i];
        }
        break;
    }
    __asm__ volatile("" : : "r"(a), "r"(b), "r"(c) : "memory");
}

/* Bytes that move, the lines read before they are written included. */
static void stream(struct thread *self, int kernel) {
    static const double bytes[] = {24, 24, 32, 32};
    uint64_t n = ARRAY_BYTES / sizeof(double);
    double *a = (double *)self->ring, *b = a + n, *c = (double *)self->streams;
    together();
    round_of(kernel, a, b, c, n / 2);
    together();
    uint64_t start = now_ns();
    round_of(kernel, a, b, c, n);
    uint64_t took = now_ns() - start;
    atomic_fetch_add(&finished, 1);
    while (atomic_load(&finished) < threads) {
        round_of(kernel, a, b, c, n / 64);
    }
    self->ns = (double)took / (double)n;
    self->gb_s = bytes[kernel] * (double)n / (double)took;
}

static struct thread all[THREADS_MAX];

/* The first thread says what all measured: the mean time, the sum of what passed. */
static void say(struct thread *self, const char *setting) {
    together();
    if (self->index == 0) {
        double ns = 0, gb_s = 0;
        for (int i = 0; i < threads; i++) {
            ns += all[i].ns / threads;
            gb_s += all[i].gb_s;
        }
        printf("%s %.3f %.4f\n", setting, ns, gb_s);
        fflush(stdout);
    }
    together();
}

static void loads(struct thread *self) {
    /* Lines of the streams a load of the chase: 0, then 0.5 to 48; before that, paused ones. */
    static const struct load settings[] = {
        {1, 0, 0, 4000}, {1, 0, 0, 1200}, {4, 0, 0, 0}, {8, 1, 0, 0}, {4, 1, 0, 0}, {2, 1, 0, 0},
        {1, 1, 0, 0},    {2, 3, 0, 0},    {1, 2, 0, 0}, {2, 5, 0, 0}, {1, 3, 0, 0}, {1, 4, 0, 0},
        {1, 6, 0, 0},    {1, 8, 0, 0},    {1, 12, 0, 0},
    };
    static const uint64_t stores[] = {0, 1, STREAMS};
    self->at = make_ring(self->ring, RING_BYTES, 4);
    for (size_t m = 0; m < sizeof stores / sizeof *stores; m++) {
        uint64_t before = WARM_LINES;
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
            struct load load = settings[i];
            if (stores[m] > 0 && load.groups == 0) {
                continue;
            }
            load.stores = stores[m];
            loaded(self, load, before);
            before = NEXT_LINES;
            char setting[128];
            snprintf(setting, sizeof setting, "load %lu %lu %lu %lu", load.chases,
                     load.groups * STREAMS, load.groups * load.stores, load.pause);
            say(self, setting);
        }
    }
}

static const char *mode;

static void *begin(void *data) {
    struct thread *self = data;
    cpu_set_t allowed, own;
    sched_getaffinity(0, sizeof allowed, &allowed);
    CPU_ZERO(&own);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && seen++ == self->index) {
            CPU_SET(cpu, &own);
        }
    }
    if (sched_setaffinity(0, sizeof own, &own) != 0) {
        fail("fewer CPUs than threads");
    }
    bool idle = !strcmp(mode, "idle");
    self->ring = memory(idle ? IDLE_BYTES : RING_BYTES);
    self->streams = idle || !strcmp(mode, "levels") ? NULL : memory(STREAMS * STREAM_BYTES);
    if (!strcmp(mode, "levels")) {
        levels(self);
    } else if (!strcmp(mode, "idle")) {
        self->at = make_ring(self->ring, IDLE_BYTES, 1);
        chain(self, 1);
        say(self, "idle");
    } else if (!strcmp(mode, "chains")) {
        self->at = make_ring(self->ring, RING_BYTES, 1);
        for (uint64_t chains = 1; chains <= CHAINS_MAX; chains *= 2) {
            char setting[64];
            chain(self, chains);
            snprintf(setting, sizeof setting, "chains %lu", chains);
            say(self, setting);
        }
    } else if (!strcmp(mode, "loads")) {
        loads(self);
    } else {
        static const char *const names[] = {"copy", "scale", "add", "triad"};
        for (int kernel = 0; kernel < 4; kernel++) {
            char setting[64];
            stream(self, kernel);
            snprintf(setting, sizeof setting, "stream %s", names[kernel]);
            say(self, setting);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    mode = argc == 3 ? argv[1] : "";
    threads = argc == 3 ? atoi(argv[2]) : 0;
    static const char *const modes[] = {"levels", "idle", "chains", "loads", "stream"};
    bool known = false;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        known |= !strcmp(mode, modes[i]);
    }
    if (!known || threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "usage: probe levels|idle|chains|loads|stream THREADS\n");
        return 2;
    }
    pthread_t handles[THREADS_MAX];
    for (int i = 0; i < threads; i++) {
        all[i].index = i;
        if (pthread_create(&handles[i], NULL, begin, &all[i]) != 0) {
            fail("pthread_create");
        }
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(handles[i], NULL);
    }
    return 0;
}
