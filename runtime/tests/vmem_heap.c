/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_heap.c: a heap of vregions behaves like any heap: objects keep their contents while several
 * threads allocate and free and the objects are moved, calloc returns zeroes, freed memory is
 * released, a fork copies it, and raw system calls that remap parts of it lose nothing.
 *
 * This test's daemon requests moves of objects in the table, back and forth.
 */
#include "hazard.h"
#include <malloc.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/resource.h>

#define MIB ((size_t)1 << 20)
#define ABSENT_NODE 900 /* no machine has this node */
#define THREADS 3       /* chosen: more than the CPUs of a small machine */
#define SLOTS 48        /* objects of a thread that live at a time. Chosen */
#define ROUNDS 400      /* chosen */
#define FORKS 3         /* chosen */
#define TAKEN (2 * MIB) /* a piece */
#define TAKEN_OBJECTS 6 /* chosen */
#define TAKEN_ROUNDS 6  /* chosen */
#define LOST_MAX 18 /* of 36: the gap lasts a time slice where others want the CPU */

struct slot {
    uint32_t *words;
    size_t count;
    uint32_t seed;
};

static uint32_t word(uint32_t seed, size_t at) {
    return seed * 2654435761u + (uint32_t)at * 40503u;
}

static void fill(struct slot *slot, uint32_t seed) {
    slot->seed = seed;
    for (size_t i = 0; i < slot->count; i++)
        slot->words[i] = word(seed, i);
}

static void check_slot(const struct slot *slot) {
    for (size_t i = 0; i < slot->count; i++)
        CHECK(slot->words[i] == word(slot->seed, i), "%p[%zu] of %zu is %x", (void *)slot->words, i,
              slot->count, slot->words[i]);
}

static size_t size_of(uint32_t seed) {
    size_t step = seed >> 27; /* most are small, some large enough for the kernel to zero them */
    return step == 0 ? 9 * MIB + seed % MIB : step < 16 ? 64 + seed % 4000 : 4096 + seed % 300000;
}

static void turn(struct slot *slot, uint32_t seed) {
    if (slot->words) {
        check_slot(slot);
        if (seed % 3 == 0) {
            size_t less = slot->count;
            slot->count = size_of(seed) / 4;
            slot->words = realloc(slot->words, slot->count * 4);
            CHECK(slot->words);
            less = less < slot->count ? less : slot->count;
            for (size_t i = 0; i < less; i++)
                CHECK(slot->words[i] == word(slot->seed, i), "moved by realloc");
            fill(slot, seed);
            return;
        }
        free(slot->words);
    }
    slot->count = size_of(seed) / 4;
    slot->words = calloc(slot->count, 4);
    CHECK(slot->words);
    for (size_t i = 0; i < slot->count; i++)
        CHECK(slot->words[i] == 0, "%p[%zu] of %zu is born %x", (void *)slot->words, i, slot->count,
              slot->words[i]);
    fill(slot, seed);
}

static void stress(uint32_t seed, unsigned rounds, struct slot *slots) {
    for (unsigned i = 0; i < rounds; i++) {
        seed = seed * 1664525u + 1013904223u;
        turn(&slots[seed >> 8 & 31], seed ^ i);
    }
}

static void *thread(void *seed) {
    struct slot slots[SLOTS] = {0};
    stress((uint32_t)(uintptr_t)seed, ROUNDS, slots);
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].words) {
            check_slot(&slots[i]);
            free(slots[i].words);
        }
    return NULL;
}

/* Children write to inherited objects, and see no later write of the parent. */
static void fork_while_moving(struct slot *slots, uint32_t seed) {
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < SLOTS; i++)
            if (slots[i].words)
                check_slot(&slots[i]);
        stress(seed, 100, slots);
        if (seed % 2 && fork() == 0) { /* a grandchild */
            stress(seed + 1, 50, slots);
            _exit(0);
        }
        for (int i = 0; i < SLOTS; i++)
            if (slots[i].words)
                check_slot(&slots[i]);
        _exit(wait(NULL) > 0 ? 0 : 0);
    }
    stress(seed + 7, 100, slots);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "child: %x", status);
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].words)
            check_slot(&slots[i]);
}

static size_t resident(const char *start, size_t bytes) {
    static unsigned char pages[64 * 256];
    size_t count = 0;
    CHECK(!mincore((void *)((uintptr_t)start & -4096ul), bytes, pages));
    for (size_t i = 0; i < bytes / 4096; i++)
        count += pages[i] & 1;
    return count;
}

/* All memory of a freed object is released, also after a fork whose child has ended. */
static void check_released(bool after_fork) {
    size_t bytes = 48 * MIB;
    char *large = malloc(bytes);
    CHECK(large);
    memset(large, 1, bytes);
    /* During a switch memory looks absent for a moment. */
    size_t there = 0;
    for (int i = 0; i < 100000 && there != bytes / 4096; i++)
        there = resident(large, bytes);
    CHECK(there == bytes / 4096, "%zu of %zu OS pages", there, bytes / 4096);
    if (after_fork) {
        pid_t child = fork();
        if (child == 0)
            _exit(large[bytes / 2] != 1);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        memset(large, 2, bytes);
        CHECK(fork() || (_exit(0), 0)); /* its handlers see that the first child has ended */
        wait(NULL);
        while (resident(large, bytes) == 0)
            ;
    }
    free(large);
    /* The runtime checks for children once a second. */
    for (int i = 0; i < 500 && resident(large, bytes) > 0; i++) {
        malloc_trim(0);
        struct timespec wait = {0, 20000000};
        if (resident(large, bytes) > 0)
            nanosleep(&wait, NULL);
    }
    CHECK(resident(large, bytes) == 0, "%zu of %zu OS pages are kept", resident(large, bytes),
          bytes / 4096);
}

static bool is_shared(const void *p) {
    char line[512];
    unsigned long from, to;
    char rights[5];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps);
    while (fgets(line, sizeof(line), maps))
        if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 && from <= (uintptr_t)p &&
            (uintptr_t)p < to)
            found = rights[3] == 's';
    fclose(maps);
    return found;
}

static sigjmp_buf back;
static void jump(int signal) {
    siglongjmp(back, signal);
}

static bool may_write(volatile char *at) {
    signal(SIGSEGV, jump);
    if (sigsetjmp(back, 1))
        return false;
    *at = *at;
    return true;
}

/* Adds mappings up to the limit of a process, two for each OS page; returns the range they are in.
 */
static char *add_mappings(size_t *bytes) {
    *bytes = (size_t)512 * MIB;
    char *fill = mmap(NULL, *bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(fill != MAP_FAILED);
    for (size_t at = 4096; at < *bytes && !mprotect(fill + at, 4096, PROT_READ);)
        at += 8192;
    CHECK(errno == ENOMEM);
    return fill;
}

/* Memory that is emptied keeps its rights. `full`: the process can have no more mappings. */
static void rights_and_advice(bool full) {
    size_t fill_bytes = 0;
    char *p = memset(aligned_alloc(4096, 8 * 4096), 7, 8 * 4096), *fill = NULL;
    CHECK(!mprotect(p, 4096, PROT_READ) && !mprotect(p + 3 * 4096, 4096, PROT_NONE));
    if (full)
        fill = add_mappings(&fill_bytes);
    CHECK(mprotect(p + 6 * 4096, 4096, PROT_READ) == (full ? -1 : 0));
    bool was_set = !full;
    CHECK(!madvise(p, 5 * 4096, MADV_DONTNEED));
    CHECK(!may_write(p) && may_write(p + 4096) && !may_write(p + 3 * 4096));
    CHECK(may_write(p + 6 * 4096) != was_set && p[6 * 4096] == 7, "rights that were refused");
    CHECK(p[0] == 0 && p[4096] == 0 && p[4 * 4096] == 0 && p[5 * 4096] == 7 &&
          p[8 * 4096 - 1] == 7);
    if (full)
        CHECK(!munmap(fill, fill_bytes));
    CHECK(!mprotect(p, 8 * 4096, PROT_READ | PROT_WRITE));
    CHECK(p[3 * 4096] == 0 && may_write(p) && may_write(p + 3 * 4096));
    free(p);
}

/* Remaps an object by raw system calls, and back. False: its contents are lost, because it happened
 * between the last check of a mapping and its switch. */
static bool remap_aside(char *p, char *aside) {
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED, nothing = MAP_PRIVATE | MAP_ANONYMOUS;
    bool is_kept = true;
    for (size_t at = 0; at < TAKEN; at += 4096) {
        CHECK(syscall(SYS_mremap, p + at, 4096, 4096, flags, aside + at) == (long)(aside + at));
        CHECK(syscall(SYS_mmap, p + at, 4096, PROT_NONE, nothing | MAP_FIXED, -1, 0) != -1);
    }
    for (size_t at = 0; at < TAKEN; at++)
        is_kept &= aside[at] == (char)(at >> 7);
    for (size_t at = 0; at < TAKEN; at += 4096)
        CHECK(syscall(SYS_mremap, aside + at, 4096, 4096, flags, p + at) == (long)(p + at));
    CHECK(!syscall(SYS_mprotect, p, TAKEN, PROT_READ) &&
          !syscall(SYS_mprotect, p, TAKEN, PROT_READ | PROT_WRITE));
    return is_kept;
}

static void raw_remaps(void) {
    char *p[TAKEN_OBJECTS];
    char *aside = mmap(NULL, TAKEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int lost = 0;
    CHECK(aside != MAP_FAILED);
    for (int i = 0; i < TAKEN_OBJECTS; i++) {
        CHECK((p[i] = aligned_alloc(4096, TAKEN)));
        for (size_t at = 0; at < TAKEN; at++)
            p[i][at] = (char)(at >> 7);
    }
    for (int i = 0; i < TAKEN_OBJECTS * TAKEN_ROUNDS; i++) {
        char *one = p[i % TAKEN_OBJECTS];
        bool is_kept = remap_aside(one, aside);
        for (size_t at = 0; at < TAKEN; at++)
            CHECK(!is_kept || one[at] == (char)(at >> 7), "%zu in round %d", at, i);
        for (size_t at = 0; at < TAKEN; at++) /* private memory again, or what moved is written */
            one[at] = (char)(at >> 7);
        lost += !is_kept;
    }
    CHECK(lost <= LOST_MAX, "%d", lost);
    for (int i = 0; i < TAKEN_OBJECTS; i++)
        free(p[i]);
    CHECK(!munmap(aside, TAKEN));
}

/* Without descriptors nothing moves, and nothing else fails. */
static void without_descriptors(struct slot *slots) {
    struct rlimit before, none;
    CHECK(!getrlimit(RLIMIT_NOFILE, &before));
    none = (struct rlimit){3, before.rlim_max};
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    stress(7, 150, slots);
    CHECK(!setrlimit(RLIMIT_NOFILE, &before));
}

static long threads_now(void) {
    struct stat tasks; /* proc counts a link for each thread */
    CHECK(!stat("/proc/self/task", &tasks));
    return (long)tasks.st_nlink - 2;
}

/* A vfork child shares the heap, and must not start the mover's thread, which would end with it. */
static void child_makes_a_large_object(void) {
    pid_t child = vfork();
    CHECK(child >= 0);
    if (child == 0) {
        free(malloc(48 * MIB));
        _exit(threads_now() != 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "%x", status);
}

static int hosted(bool can_move) {
    void *small = malloc(100), *large = malloc(100000);
    CHECK(!is_shared(small) && !is_shared(large), "what backs the heap");
    CHECK(threads_now() == 1, "a small heap is not worth a thread");
    child_makes_a_large_object();
    CHECK(threads_now() == 1, "nor is it this process's");
    check_released(false);
    CHECK(threads_now() == 1 + (can_move ? 2 : 0), "a large one is");
    rights_and_advice(false);
    rights_and_advice(true);
    raw_remaps();
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, thread, (void *)(i + 1)));
    struct slot slots[SLOTS] = {0};
    stress(99, 250, slots);
    without_descriptors(slots);
    for (uint32_t i = 0; i < FORKS; i++)
        fork_while_moving(slots, i * 77 + 5);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].words)
            check_slot(&slots[i]);
    rights_and_advice(false);
    CHECK(!is_shared(small) && !is_shared(large), "what moved is still private");
    check_released(true);
    return 0;
}

/* ---- The daemon ------------------------------------------------------------------------------ */

static struct tcl_move requested[TCL_MOVES_MAX];
static uint32_t requested_count;
static int requested_node = ABSENT_NODE;
static uint64_t moved_bytes, requests;
static int last_error;

static void add_request(struct session *s, const struct known_object *found) {
    (void)s;
    if (requested_count < TCL_MOVES_MAX && (uint32_t)(found->addr >> 12) * 2654435761u >> 31 == 0)
        requested[requested_count++] =
            (struct tcl_move){.addr = found->addr, .bytes = found->bytes, .node = requested_node};
}

/* One request at a time, to the first process, the only one that executes moves. */
static void request_moves(struct daemon *d) {
    struct session *s = d->session[0];
    struct tcl_control *control = control_of(s);
    uint32_t done = __atomic_load_n(&header_of(s)->moves_done, __ATOMIC_ACQUIRE);
    if (!header_of(s)->is_mover || done != control->moves_asked)
        return;
    for (uint32_t i = 0; i < control->move_count; i++) {
        moved_bytes += header_of(s)->moved[i].bytes;
        last_error = header_of(s)->moved[i].error ? header_of(s)->moved[i].error : last_error;
    }
    requested_node = requested_node == ABSENT_NODE ? 0 : ABSENT_NODE;
    requested_count = 0;
    walk_table(s, add_request);
    memcpy(control->moves, requested, sizeof(requested));
    control->move_count = requested_count;
    __atomic_store_n(&control->moves_asked, done + 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &control->moves_asked, 1 /* FUTEX_WAKE */, 1, NULL, NULL, 0);
    requests++;
}

static void set_backing(struct session *s) {
    control_of(s)->backing = TCL_BACKING_VMEM;
}

static void run(const char *name) {
    struct daemon d = {.prepare = set_backing, .each_turn = request_moves};
    host(&d, name);
    for (int i = 1; i < d.sessions; i++)
        CHECK(!header_of(d.session[i])->is_mover, "a child executes moves");
    bool can_move = header_of(d.session[0])->is_mover;
    CHECK(!can_move || (requests > 3 && moved_bytes > MIB), "%lu requests, %lu bytes, error %d",
          requests, moved_bytes, last_error);
    printf("vmem_heap: %d processes; %lu MiB moved in %lu requests%s\n", d.sessions,
           moved_bytes >> 20, requests, can_move ? "" : "; no userfaultfd, nothing was requested");
    close_daemon(&d);
}

/* As the runtime does: whether a userfaultfd for the kernel's accesses, too, is available. */
static bool can_move(void) {
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || !access("/dev/userfaultfd", R_OK | W_OK);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(can_move());
    run(argv[0]);
    return 0;
}
