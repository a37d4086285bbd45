/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * tiercel.h: what a program can tell Tiercel about itself, in C and C++.
 * In: phases, wishes for memory. Out: the same memory as malloc's, in a better place. Knows nothing
 * of where that is: spaces are resolved on the machine the program runs on.
 *
 *   #include <tiercel.h>
 *
 *   tiercel_phase("assemble");
 *   struct tiercel_traits traits = {.bound = TIERCEL_BY_LATENCY, .pattern = TIERCEL_CHASED};
 *   struct node *nodes = tiercel_alloc(count * sizeof(*nodes), &traits);
 *   tiercel_free(nodes);
 *
 * Nothing has to be linked: under `tiercel run` these calls find the runtime; without it phases are
 * ignored and tiercel_alloc is malloc. A program that links libtiercel.so defines TIERCEL_LINKED.
 */
#ifndef TIERCEL_H
#define TIERCEL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#if defined(__cplusplus)
extern "C" {
#endif

/* Kinds of memory a program may want, whatever they are on a machine. */
enum tiercel_space {
    TIERCEL_ANY_SPACE = 0,      /* no wish: a plan decides, else the hints, else the budget */
    TIERCEL_HIGH_BANDWIDTH = 1, /* the most bytes a second: HBM where there is any */
    TIERCEL_LOW_LATENCY = 2,    /* the shortest wait for one byte */
    TIERCEL_LARGE_CAPACITY = 3  /* the most room: CXL, NVM, or the largest DRAM */
};

enum tiercel_pattern {
    TIERCEL_ANY_PATTERN = 0,
    TIERCEL_SEQUENTIAL = 1, /* one after the other */
    TIERCEL_STRIDED = 2,    /* with gaps of one length */
    TIERCEL_RANDOM = 3,     /* anywhere, addresses known ahead */
    TIERCEL_CHASED = 4      /* each address is read from the last one */
};

/* What the accesses wait for. */
enum tiercel_bound { TIERCEL_ANY_BOUND = 0, TIERCEL_BY_BANDWIDTH = 1, TIERCEL_BY_LATENCY = 2 };

enum tiercel_lifetime {
    TIERCEL_ANY_LIFETIME = 0,
    TIERCEL_TEMPORARY = 1, /* shorter than a phase */
    TIERCEL_PHASE_LONG = 2,
    TIERCEL_RUN_LONG = 3
};

/* Read and write mix: percent of accesses that read, from 1 on; 0 says nothing. */
#define TIERCEL_READS_ONLY 100
#define TIERCEL_WRITES_MOSTLY 1

/* What a program knows of an object. All zero: nothing. `space` prescribes, and is kept to as far
 * as there is room; the others are hints that a plan overrides. */
struct tiercel_traits {
    enum tiercel_space space;
    enum tiercel_pattern pattern;
    enum tiercel_bound bound;
    enum tiercel_lifetime lifetime;
    uint32_t read_percent;
    uint32_t reserved[3]; /* 0 */
};

/* Turns hints into a space, for objects without a prescribed one. `context` is what was registered
 * with it. Called by whatever thread allocates; it may not allocate with traits itself. */
typedef enum tiercel_space tiercel_strategy(size_t bytes, const struct tiercel_traits *traits,
                                            void *context);

/* A flag of tiercel_vregion_register: no memory is taken now. A vpage gets it when it is first
 * touched, by a thread of the runtime and a userfaultfd: of the node that the vregion is bound to,
 * or else of the CPU that first touches its 2 MiB. So what is never touched has none. Where no
 * userfaultfd is to be had the flag does nothing; where a pool is exhausted at a touch, the rest of
 * the vregion is ordinary memory of the kernel's. */
#define TIERCEL_MAP_USERFAULT 0x1000000

#if defined(TIERCEL_LINKED) || defined(TIERCEL_RUNTIME)

/* Says that another phase begins, until the next call. The name is copied; the same name is the
 * same phase. May wait for objects to be moved, when a plan asks for it. */
void tiercel_phase(const char *name);

/* As malloc, in memory that suits the traits (NULL: none). Objects below 4 KiB share OS pages with
 * others and follow no traits. Free with tiercel_free or free. */
void *tiercel_alloc(size_t bytes, const struct tiercel_traits *traits);

/* The same at a multiple of `align`, a power of two. */
void *tiercel_aligned_alloc(size_t align, size_t bytes, const struct tiercel_traits *traits);

/* As free. */
void tiercel_free(void *memory);

/* Replaces the usual strategy (NULL: restores it) for all later calls of tiercel_alloc. Not by two
 * threads at once. */
void tiercel_set_strategy(tiercel_strategy *strategy, void *context);

/* As malloc, calloc, realloc and free, for libraries that keep a context beside such functions: it
 * is a space, `(void *)TIERCEL_HIGH_BANDWIDTH`. Any space may free what another allocated; `bytes`
 * of the last is ignored. */
void *tiercel_space_malloc(void *space, size_t bytes);
void *tiercel_space_calloc(void *space, size_t count, size_t each);
void *tiercel_space_realloc(void *space, void *memory, size_t bytes);
void tiercel_space_free(void *space, void *memory, size_t bytes);

/* 1 when the runtime is here and a daemon listens, else 0. */
int tiercel_is_hosted(void);

/* ---- Vregions: memory whose place the program decides (VMem, tables 1 and 3) ------------------
 *
 * As mmap, backed by a pool of the node the caller runs on: the daemon's (`--pool`), or memory of
 * the process's own. Only MAP_PRIVATE | MAP_ANONYMOUS is managed; all else is mmap's as it stands.
 * Vpages have 4 KiB; 64 KiB with MAP_HUGE_64KB, 2 MiB with MAP_HUGE_2MB in `flags`. MAP_POPULATE
 * maps all of it at once. `bytes` are rounded up to vpages, addresses aligned to them. MAP_FAILED
 * and errno: ENOMEM (pool exhausted, or no memory), EINVAL, ENOSYS (no memfd here), EFBIG
 * (RLIMIT_FSIZE).
 * munmap, mprotect and fork mean what they mean for private memory. madvise does not: MADV_DONTNEED
 * zeroes nothing. Buffers of direct I/O (O_DIRECT) may not be moved while it lasts. */
void *tiercel_vregion_register(void *addr, size_t bytes, int prot, int flags, int fd, off_t offset);

/* How such touches are served from now on, in all vregions: memory for `around` bytes at a time, a
 * power of two from 4096 to 2 MiB (262144 unless told); and for so many microseconds, at most a
 * second, the thread looks for the next touch before it sleeps (50). */
int tiercel_vregion_faults(size_t around, unsigned spin_us);

/* As munmap. The calls from here on answer 0, or -1 and errno: EINVAL (no vregion, no such bounds),
 * ENOMEM (the node is full), ENODEV (no such node), ENOTSUP (not to be had here), EBUSY (somebody
 * else's userfaultfd is on it), EFAULT (the program mapped something else there, or set rights, by
 * a system call that the runtime does not see). */
int tiercel_vregion_release(void *addr, size_t bytes);

/* Moves what is there to `node`, by the kernel's number, and keeps it there. */
int tiercel_vregion_bind(void *addr, size_t bytes, int node);

/* Copies to `node` while the program goes on; nothing is switched. A later migration there copies
 * only what was written since. */
int tiercel_vregion_replicate(void *addr, size_t bytes, int node);

/* Copies and switches while the program goes on. What it leaves stays as a shadow, so that going
 * back copies only what was written since. */
int tiercel_vregion_migrate(void *addr, size_t bytes, int node);

/* The same on a thread of the runtime's own: a ticket from 1, or -1 and errno (EAGAIN: 64 wait). */
long tiercel_vregion_start(void *addr, size_t bytes, int node);

/* Waits for what that ticket stands for, and answers as tiercel_vregion_migrate. Once a ticket. */
int tiercel_vregion_await(long ticket);

/* Node that this address has its memory on, or -1 and errno (ENOENT: it was not touched yet). */
int tiercel_vregion_node(const void *addr);

/* From now on so many threads copy what moves, up to 16; 1: only the one that moves it. 0, which is
 * the default: up to 4, as far as there are CPUs that idle and that no thread of the program has.
 */
int tiercel_vregion_copiers(int threads);

#else /* Looked for at the first call. Each file that includes this looks for itself. */

#if defined(__cplusplus)
} /* extern "C" */
#endif
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__cplusplus)
extern "C" {
#endif

#if defined(__GNUC__)
#define TIERCEL_MAY_BE_UNUSED __attribute__((unused))
#else
#define TIERCEL_MAY_BE_UNUSED
#endif

/* In the order of their names below. */
struct tiercel_calls {
    void (*phase)(const char *);
    void *(*aligned_alloc)(size_t, size_t, const struct tiercel_traits *);
    void (*free)(void *);
    void (*set_strategy)(tiercel_strategy *, void *);
    int (*is_hosted)(void);
    void *(*vregion_register)(void *, size_t, int, int, int, off_t);
    int (*vregion_release)(void *, size_t);
    int (*vregion_bind)(void *, size_t, int);
    int (*vregion_replicate)(void *, size_t, int);
    int (*vregion_migrate)(void *, size_t, int);
    long (*vregion_start)(void *, size_t, int);
    int (*vregion_await)(long);
    int (*vregion_node)(const void *);
    int (*vregion_copiers)(int);
    int (*vregion_faults)(size_t, unsigned);
};

/* Two threads that look at once find the same. Copied as bytes: ISO C has no conversion. */
TIERCEL_MAY_BE_UNUSED static const struct tiercel_calls *tiercel_find_calls(void) {
    static struct tiercel_calls calls;
    static int is_known;
    static const char *const names[] = {
        "tiercel_phase",           "tiercel_aligned_alloc",  "tiercel_free",
        "tiercel_set_strategy",    "tiercel_is_hosted",      "tiercel_vregion_register",
        "tiercel_vregion_release", "tiercel_vregion_bind",   "tiercel_vregion_replicate",
        "tiercel_vregion_migrate", "tiercel_vregion_start",  "tiercel_vregion_await",
        "tiercel_vregion_node",    "tiercel_vregion_copiers", "tiercel_vregion_faults"};
    if (!__atomic_load_n(&is_known, __ATOMIC_ACQUIRE)) {
        void *found[sizeof(names) / sizeof(names[0])];
        size_t i;
        for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
            found[i] = dlsym(RTLD_DEFAULT, names[i]);
        memcpy(&calls, found, sizeof(found));
        __atomic_store_n(&is_known, 1, __ATOMIC_RELEASE);
    }
    return &calls;
}

TIERCEL_MAY_BE_UNUSED static inline void tiercel_phase(const char *name) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    if (calls->phase)
        calls->phase(name);
}

TIERCEL_MAY_BE_UNUSED static inline void *
tiercel_aligned_alloc(size_t align, size_t bytes, const struct tiercel_traits *traits) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    void *memory = NULL;
    if (calls->aligned_alloc)
        return calls->aligned_alloc(align, bytes, traits);
    if (align <= sizeof(long double))
        return malloc(bytes);
    return posix_memalign(&memory, align, bytes) == 0 ? memory : NULL;
}

TIERCEL_MAY_BE_UNUSED static inline void *tiercel_alloc(size_t bytes,
                                                        const struct tiercel_traits *traits) {
    return tiercel_aligned_alloc(1, bytes, traits);
}

TIERCEL_MAY_BE_UNUSED static inline void tiercel_free(void *memory) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    (calls->free ? calls->free : free)(memory);
}

TIERCEL_MAY_BE_UNUSED static inline void tiercel_set_strategy(tiercel_strategy *strategy,
                                                              void *context) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    if (calls->set_strategy)
        calls->set_strategy(strategy, context);
}

TIERCEL_MAY_BE_UNUSED static inline int tiercel_is_hosted(void) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->is_hosted ? calls->is_hosted() : 0;
}

/* Without the runtime: memory of mmap's, which does not move. */
TIERCEL_MAY_BE_UNUSED static inline void *
tiercel_vregion_register(void *addr, size_t bytes, int prot, int flags, int fd, off_t offset) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    const int huge = 63 << 26; /* MAP_HUGE_MASK << MAP_HUGE_SHIFT: it would be refused */
    return calls->vregion_register ? calls->vregion_register(addr, bytes, prot, flags, fd, offset)
                                   : mmap(addr, bytes, prot, flags & ~huge, fd, offset);
}

TIERCEL_MAY_BE_UNUSED static inline int tiercel_vregion_release(void *addr, size_t bytes) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->vregion_release ? calls->vregion_release(addr, bytes) : munmap(addr, bytes);
}

TIERCEL_MAY_BE_UNUSED static inline int tiercel_no_vregions(void) {
    errno = ENOSYS;
    return -1;
}

TIERCEL_MAY_BE_UNUSED static inline int tiercel_vregion_bind(void *addr, size_t bytes, int node) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->vregion_bind ? calls->vregion_bind(addr, bytes, node) : tiercel_no_vregions();
}

TIERCEL_MAY_BE_UNUSED static inline int tiercel_vregion_replicate(void *addr, size_t bytes,
                                                                  int node) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->vregion_replicate ? calls->vregion_replicate(addr, bytes, node)
                                    : tiercel_no_vregions();
}

TIERCEL_MAY_BE_UNUSED static inline int tiercel_vregion_migrate(void *addr, size_t bytes,
                                                                int node) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->vregion_migrate ? calls->vregion_migrate(addr, bytes, node)
                                  : tiercel_no_vregions();
}

TIERCEL_MAY_BE_UNUSED static inline long tiercel_vregion_start(void *addr, size_t bytes, int node) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->vregion_start ? calls->vregion_start(addr, bytes, node) : tiercel_no_vregions();
}

TIERCEL_MAY_BE_UNUSED static inline int tiercel_vregion_await(long ticket) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->vregion_await ? calls->vregion_await(ticket) : tiercel_no_vregions();
}

TIERCEL_MAY_BE_UNUSED static inline int tiercel_vregion_node(const void *addr) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->vregion_node ? calls->vregion_node(addr) : tiercel_no_vregions();
}

TIERCEL_MAY_BE_UNUSED static inline int tiercel_vregion_copiers(int threads) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->vregion_copiers ? calls->vregion_copiers(threads) : tiercel_no_vregions();
}

TIERCEL_MAY_BE_UNUSED static inline int tiercel_vregion_faults(size_t around, unsigned spin_us) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->vregion_faults ? calls->vregion_faults(around, spin_us) : tiercel_no_vregions();
}

#endif

#if defined(__cplusplus)
} /* extern "C" */
#endif

#endif
