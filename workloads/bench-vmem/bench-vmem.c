/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * bench-vmem.c: the costs of vregions, as VMem measures them.
 * In: touch KIND MIB, copy KIND MIB ROUNDS, or move KIND MIB NODE (0, 1: whether it is written
 * meanwhile).
 * Out: `name value` lines: times in ns for 4 KiB, stalls in ns, touches in a microsecond.
 * Knows nothing of limits.
 *
 * touch (table 2): one pass writes every word of fresh memory, one reads them; kinds are `mmap` and
 * `thp` (the kernel's, with 4 KiB and huge OS pages), `vmem4k`, `vmem64k`, `vmem2m`, and `eager`,
 * which is vmem4k mapped as a whole when it is registered. `user:KIB:US` is vmem4k filled through
 * userfaultfd at the first touch, KIB at a time, by a thread that polls for US before it sleeps.
 * copy: replicates to a node that no machine has, with one thread and with two in turns, while no
 * thread touches the region; medians of elapsed time. `first` allocates the replica, `again` finds
 * one of which every word is out of date.
 * move (figure 4): migrates all of it from node 0 to NODE (`whole`) and `back`; copies another
 * region ahead (`copy`) and then switches (`switch`). `mbind`, `mbindthp`, `pages` (move_pages) and
 * `pagesthp` are the kernel's ways. A second thread, on a CPU of its own where there are two, keeps
 * reading or writing one word of an OS page after the other, and reports the longest time that a
 * batch of touches took. Residency is checked afterwards with the kernel.
 */
#include "../../include/tiercel.h"
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* CPU time of this thread, which other programs do not change; waiting is not in it. */
static uint64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The flag of `user:KIB:US`; sets the figures for the vregions that follow. */
static int by_touch(const char *kind) {
    size_t kib;
    unsigned spin_us;
    if (sscanf(kind, "user:%zu:%u", &kib, &spin_us) != 2)
        return 0;
    if (tiercel_vregion_faults(kib << 10, spin_us))
        die(kind);
    return TIERCEL_MAP_USERFAULT;
}

static uint64_t *make(const char *kind, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | by_touch(kind), rights = PROT_READ | PROT_WRITE;
    bool is_user = flags & TIERCEL_MAP_USERFAULT;
    bool is_ours = is_user || !strncmp(kind, "vmem", 4) || !strcmp(kind, "eager");
    int huge = !strcmp(kind, "vmem64k") ? 16 << 26 : !strcmp(kind, "vmem2m") ? 21 << 26 : 0;
    huge |= strcmp(kind, "eager") ? 0 : MAP_POPULATE;
    char *at = is_ours ? tiercel_vregion_register(NULL, bytes, rights, flags | huge, -1, 0)
                       : mmap(NULL, bytes + (2 << 20), rights, flags, -1, 0);
    if (at == MAP_FAILED)
        die(kind);
    if (is_ours && (tiercel_vregion_node(at) < 0) != is_user)
        die("no runtime, or no userfaultfd");
    if (!is_ours)
        at = (char *)(((uintptr_t)at + (2 << 20) - 1) & -(uintptr_t)(2 << 20));
    if (!strcmp(kind, "thp"))
        madvise(at, bytes, MADV_HUGEPAGE);
    else if (!is_ours)
        madvise(at, bytes, MADV_NOHUGEPAGE);
    return (uint64_t *)at;
}

/* The daemon prepares segments of its pools five times a second: four times that period. */
#define READY_US 800000u

static void touch(const char *kind, size_t bytes) {
    usleep(READY_US);
    uint64_t began = cpu_ns(), seed = 1, sum = 0;
    uint64_t *words = make(kind, bytes);
    uint64_t made = cpu_ns(), elapsed = now_ns();
    for (size_t i = 0; i < bytes / 8; i++)
        words[i] = seed = seed * 6364136223846793005u + 1442695040888963407u;
    uint64_t written = cpu_ns();
    elapsed = now_ns() - elapsed;
    for (size_t i = 0; i < bytes / 8; i++)
        sum += ((volatile uint64_t *)words)[i];
    uint64_t read = cpu_ns();
    double os_pages = (double)(bytes / 4096);
    printf("register %.1f\nwrite %.1f\nread %.1f\nsum %lu\n", (double)(made - began) / os_pages,
           (double)(written - made) / os_pages, (double)(read - written) / os_pages, sum);
    printf("write_elapsed %.1f\n", (double)elapsed / os_pages);
}

/* The thread that touches the region while it moves: number of touches, and its longest wait. */
static struct {
    _Atomic bool is_over;
    _Atomic uint64_t touches, longest_ns;
    _Atomic int thread;
    uint64_t *area;
    size_t bytes;
    bool writes;
} toucher;

/* Touches between two readings of the clock, which costs as much as some of them: 5 us. */
#define TOUCHES 64
/* How long it runs alone, for its undisturbed speed, before anything moves. Chosen, not
 * measured. */
#define ALONE_US 20000u
/* OS pages of one move_pages call. Chosen, not measured: 4 MiB. */
#define BATCH_MAX 1024u

static cpu_set_t cpus; /* those that this program may use */

static void pin(int turn) {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&cpus) > 1 && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus) && !turn--)
            CPU_SET(cpu, &one);
    if (CPU_COUNT(&one))
        sched_setaffinity(0, sizeof(one), &one);
}

/* The scheduler's statistics of the toucher (kernel.sched_schedstats). */
static FILE *scheduler_statistics(const char *mode) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d/sched", atomic_load(&toucher.thread));
    return fopen(path, mode);
}

/* False: the kernel keeps no statistics. */
static bool reset_waits(void) {
    FILE *file = scheduler_statistics("w");
    if (file)
        fputs("0", file);
    return file && !fclose(file);
}

/* Its longest waits since then, ns: runnable without a CPU, and asleep, which is for memory alone.
 * False: the kernel keeps no statistics, so the waits are unknown. */
static bool longest_waits(uint64_t *for_cpu_ns, uint64_t *for_memory_ns) {
    FILE *file = scheduler_statistics("r");
    char line[256], name[64];
    double ms;
    int found = 0;
    *for_cpu_ns = *for_memory_ns = 0;
    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%63[^: ] : %lf", name, &ms) != 2)
            continue;
        uint64_t ns = (uint64_t)(ms * 1e6);
        bool is_cpu = !strcmp(name, "wait_max");
        bool is_memory = !strcmp(name, "sleep_max") || !strcmp(name, "block_max");
        found += is_cpu || is_memory;
        if (is_cpu)
            *for_cpu_ns = ns;
        if (is_memory && ns > *for_memory_ns)
            *for_memory_ns = ns;
    }
    if (file)
        fclose(file);
    return found == 3;
}

static void *touch_on(void *nothing) {
    pin(1);
    atomic_store(&toucher.thread, (int)syscall(SYS_gettid));
    uint64_t last = now_ns();
    for (size_t at = 8; !atomic_load(&toucher.is_over);) {
        for (int i = 0; i < TOUCHES; i++, at = (at + 4096 * 7) % toucher.bytes)
            if (toucher.writes)
                __atomic_fetch_add(&toucher.area[at / 8], 1, __ATOMIC_RELAXED);
            else
                (void)__atomic_load_n(&toucher.area[at / 8], __ATOMIC_RELAXED);
        uint64_t now = now_ns();
        if (now - last > atomic_load(&toucher.longest_ns))
            atomic_store(&toucher.longest_ns, now - last);
        last = now;
        atomic_fetch_add(&toucher.touches, TOUCHES);
    }
    return nothing;
}

/* An interval of the mover, and the toucher's progress in it. */
struct interval {
    uint64_t cpu_ns, elapsed_ns, touches;
    uint64_t longest_ns, for_cpu_ns, for_memory_ns; /* its waits: any; by the kernel */
    bool is_counted;                                /* by the kernel */
};

static struct interval begin(void) {
    while (!atomic_load(&toucher.touches))
        ;
    bool is_counted = reset_waits();
    atomic_store(&toucher.longest_ns, 0);
    return (struct interval){.is_counted = is_counted,
                             .cpu_ns = cpu_ns(),
                             .elapsed_ns = now_ns(),
                             .touches = atomic_load(&toucher.touches)};
}

static struct interval end(struct interval began) {
    struct interval took = {.cpu_ns = cpu_ns() - began.cpu_ns,
                            .elapsed_ns = now_ns() - began.elapsed_ns,
                            .touches = atomic_load(&toucher.touches) - began.touches};
    /* It may still be waiting. */
    uint64_t seen = atomic_load(&toucher.touches);
    while (atomic_load(&toucher.touches) == seen)
        ;
    took.longest_ns = atomic_load(&toucher.longest_ns);
    took.is_counted = began.is_counted && longest_waits(&took.for_cpu_ns, &took.for_memory_ns);
    return took;
}

static struct interval alone(void) {
    struct interval began = begin();
    usleep(ALONE_US);
    return end(began);
}

/* Percent of the region on `node`; 100 where that node does not exist. */
static double percent_on(int node) {
    char path[64];
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%d", node);
    size_t on = 0;
    if (access(path, F_OK))
        return 100;
    for (size_t done = 0; done < toucher.bytes;) {
        void *at[BATCH_MAX];
        int status[BATCH_MAX];
        unsigned long count = 0;
        for (; count < BATCH_MAX && done < toucher.bytes; done += 4096)
            at[count++] = (char *)toucher.area + done;
        if (syscall(SYS_move_pages, 0, count, at, NULL, status, 0))
            die("move_pages");
        for (unsigned long i = 0; i < count; i++)
            on += status[i] == node;
    }
    return 100.0 * (double)on / (double)(toucher.bytes / 4096);
}

/* MiB of this process that are mapped as huge OS pages. */
static double huge_mib(void) {
    char line[256];
    double kib = 0, some;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "AnonHugePages: %lf", &some) == 1 ||
            sscanf(line, "ShmemPmdMapped: %lf", &some) == 1)
            kib += some;
    if (file)
        fclose(file);
    return kib / 1024;
}

static int by_mbind(void *at, size_t bytes, int node) {
    unsigned long mask[16] = {0};
    mask[node / 64] = 1ul << node % 64;
    return (int)syscall(SYS_mbind, at, bytes, MPOL_BIND, mask, 1025, MPOL_MF_MOVE);
}

/* In batches, like Tiercel's own mover. */
static int by_pages(void *start, size_t bytes, int node) {
    void *at[BATCH_MAX];
    int nodes[BATCH_MAX], status[BATCH_MAX];
    for (size_t done = 0; done < bytes;) {
        unsigned long count = 0;
        for (; count < BATCH_MAX && done < bytes; done += 4096, count++) {
            at[count] = (char *)start + done;
            nodes[count] = node;
        }
        if (syscall(SYS_move_pages, 0, count, at, nodes, status, MPOL_MF_MOVE) < 0)
            return -1;
    }
    return 0;
}

typedef int (*mover)(void *at, size_t bytes, int node);

static void report(const char *name, struct interval took) {
    double os_pages = (double)(toucher.bytes / 4096);
    printf("%s %.1f\n", name, (double)took.cpu_ns / os_pages);
    printf("%s_elapsed %.1f\n", name, (double)took.elapsed_ns / os_pages);
    printf("%s_stall %lu\n", name, took.longest_ns);
    if (took.is_counted)
        printf("%s_for_cpu %lu\n%s_for_memory %lu\n", name, took.for_cpu_ns, name,
               took.for_memory_ns);
    printf("%s_touches %.6f\n", name, (double)took.touches * 1e3 / (double)took.elapsed_ns);
}

static void timed(const char *name, mover call, int node, int now_on) {
    struct interval began = begin();
    if (call(toucher.area, toucher.bytes, node))
        die(name);
    report(name, end(began));
    double on = percent_on(now_on);
    if (on < 99) {
        fprintf(stderr, "%s: %.1f%% is on node %d\n", name, on, now_on);
        exit(1);
    }
}

/* A region for each way, because what a move leaves behind makes the next one cheaper. */
static void moves(const char *kind, size_t bytes, int node, bool writes, bool is_ahead) {
    bool is_mbind = !strncmp(kind, "mbind", 5), is_pages = !strncmp(kind, "pages", 5);
    bool is_huge = strstr(kind, "thp") != NULL;
    bool is_ours = !is_mbind && !is_pages;
    mover migrate = is_mbind ? by_mbind : is_pages ? by_pages : tiercel_vregion_migrate;
    toucher.area = make(is_ours ? kind : is_huge ? "thp" : "mmap", bytes);
    toucher.bytes = bytes;
    toucher.writes = writes;
    atomic_store(&toucher.is_over, false);
    atomic_store(&toucher.touches, 0);
    for (size_t i = 0; i < bytes / 8; i++)
        toucher.area[i] = i;
    usleep(READY_US);
    pthread_t thread;
    if (pthread_create(&thread, NULL, touch_on, NULL))
        die("thread");
    if (!is_ahead) {
        struct interval took = alone();
        printf("huge %.1f\n", huge_mib());
        report("alone", took);
        timed("whole", migrate, node, node);
        timed("back", migrate, 0, 0);
    } else {
        timed("copy", tiercel_vregion_replicate, node, 0);
        timed("switch", migrate, node, node);
    }
    atomic_store(&toucher.is_over, true);
    pthread_join(thread, NULL);
    if (is_ours)
        tiercel_vregion_release(toucher.area, bytes);
}

static void move(const char *kind, size_t bytes, int node, bool writes) {
    sched_getaffinity(0, sizeof(cpus), &cpus);
    pin(0);
    moves(kind, bytes, node, writes, false);
    if (!strncmp(kind, "vmem", 4))
        moves(kind, bytes, node, writes, true);
}

#define ROUNDS_MAX 64    /* chosen, not measured */
#define NODE_NOWHERE 900 /* no machine has this node */

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t replicate_ns(uint64_t *area, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes / 8; i++)
        area[i] = i ^ seed;
    uint64_t began = now_ns();
    if (tiercel_vregion_replicate(area, bytes, NODE_NOWHERE))
        die("replicate");
    return now_ns() - began;
}

static void copy(const char *kind, size_t bytes, int rounds) {
    static const char *const names[2] = {"first", "again"};
    static uint64_t took[2][2][ROUNDS_MAX]; /* first or again; by one thread or two */
    if (rounds < 1 || rounds > ROUNDS_MAX)
        die("rounds");
    setenv("TIERCEL_DSA", "off", 1); /* threads copy */
    for (int turn = 0; turn < 2 * rounds; turn++) {
        int threads = turn % 2 + 1;
        uint64_t *area = make(kind, bytes);
        if (tiercel_vregion_copiers(threads))
            die("copiers");
        for (int way = 0; way < 2; way++)
            took[way][threads - 1][turn / 2] = replicate_ns(area, bytes, (uint64_t)way);
        tiercel_vregion_release(area, bytes);
    }
    for (int way = 0; way < 2; way++)
        for (int threads = 1; threads <= 2; threads++) {
            uint64_t *all = took[way][threads - 1];
            qsort(all, (size_t)rounds, sizeof(*all), by_size);
            printf("%s_by_%d %.1f\n", names[way], threads,
                   (double)all[rounds / 2] / (double)(bytes / 4096));
        }
}

int main(int count, char **arguments) {
    size_t bytes = count > 3 ? (size_t)atol(arguments[3]) << 20 : 0;
    if (count == 4 && !strcmp(arguments[1], "touch"))
        touch(arguments[2], bytes);
    else if (count == 5 && !strcmp(arguments[1], "copy"))
        copy(arguments[2], bytes, atoi(arguments[4]));
    else if (count == 6 && !strcmp(arguments[1], "move"))
        move(arguments[2], bytes, atoi(arguments[4]), atoi(arguments[5]) != 0);
    else
        return 2;
    return 0;
}
