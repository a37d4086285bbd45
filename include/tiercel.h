/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * tiercel.h: the interface by which C and C++ programs describe themselves to Tiercel.
 * In: phases, traits of objects, requests for vregions. Out: memory as from malloc or mmap, placed
 * accordingly. Knows nothing of nodes: the machine that the program runs on resolves spaces.
 *
 *   #include <tiercel.h>
 *
 *   tiercel_phase("assemble");
 *   struct tiercel_traits traits = {.bound = TIERCEL_LATENCY_BOUND,
 *                                   .pattern = TIERCEL_POINTER_CHASE};
 *   struct node *nodes = tiercel_alloc(count * sizeof(*nodes), &traits);
 *   tiercel_free(nodes);
 *
 * Nothing has to be linked. Under `tiercel run` these calls find the runtime; without it phases do
 * nothing and tiercel_alloc is malloc. A program that links libtiercel.so defines TIERCEL_LINKED.
 */
#ifndef TIERCEL_H
#define TIERCEL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#if defined(__cplusplus)
extern "C" {
#endif

/* Kinds of memory that a program may ask for; each machine resolves them to its nodes. */
enum tiercel_space {
    TIERCEL_ANY_SPACE = 0,      /* unspecified: the plan decides, else the hints, else the budget */
    TIERCEL_HIGH_BANDWIDTH = 1, /* highest bandwidth: HBM where there is any */
    TIERCEL_LOW_LATENCY = 2,    /* lowest idle latency */
    TIERCEL_LARGE_CAPACITY = 3  /* largest capacity: CXL, NVM, or the largest DRAM */
};

enum tiercel_pattern {
    TIERCEL_ANY_PATTERN = 0,
    TIERCEL_SEQUENTIAL = 1,   /* consecutive addresses */
    TIERCEL_STRIDED = 2,      /* at a constant distance */
    TIERCEL_RANDOM = 3,       /* independent random addresses */
    TIERCEL_POINTER_CHASE = 4 /* each address depends on the last load */
};

/* What limits the accesses. */
enum tiercel_bound {
    TIERCEL_ANY_BOUND = 0,
    TIERCEL_BANDWIDTH_BOUND = 1,
    TIERCEL_LATENCY_BOUND = 2
};

enum tiercel_lifetime {
    TIERCEL_ANY_LIFETIME = 0,
    TIERCEL_TEMPORARY = 1, /* shorter than a phase */
    TIERCEL_PHASE_LONG = 2,
    TIERCEL_RUN_LONG = 3
};

/* How often a small object will be accessed, beside others. */
enum tiercel_temperature {
    TIERCEL_ANY_TEMPERATURE = 0,
    TIERCEL_HOT = 1, /* in the fastest memory, while its budget lasts */
    TIERCEL_COLD = 2 /* in the slowest */
};

/* Read share of the accesses, percent, from 1 to 100; 0: unspecified. */
#define TIERCEL_READS_ONLY 100
#define TIERCEL_WRITES_MOSTLY 1

/* What a program states about an object; all zero states nothing. `space` is binding while its
 * nodes have free memory; the other fields are hints, which a plan overrides. */
struct tiercel_traits {
    enum tiercel_space space;
    enum tiercel_pattern pattern;
    enum tiercel_bound bound;
    enum tiercel_lifetime lifetime;
    uint32_t read_percent;
    uint32_t reserved[3]; /* 0 */
};

/* Resolves hints to a space, for objects whose `space` is unspecified. `context` is the pointer
 * that was registered with it. The allocating thread calls it; it must not allocate with traits. */
typedef enum tiercel_space tiercel_strategy(size_t bytes, const struct tiercel_traits *traits,
                                            void *context);

/* Flag of tiercel_vregion_register: vpages get memory when they are first touched, by a thread of
 * the runtime that serves a userfaultfd. The memory comes from the node that the vregion is bound
 * to, otherwise from the node of the CPU that first touches the surrounding 2 MiB. Where
 * userfaultfd is not available the flag has no effect. Where a pool is exhausted at a touch, the
 * rest of the vregion becomes ordinary memory. A bit that no flag of mmap has (linux/mman.h). */
#define TIERCEL_MAP_USERFAULT 0x1000000

#if defined(TIERCEL_LINKED) || defined(TIERCEL_RUNTIME)

/* Begins the phase `name`, which lasts until the next call. The name is copied; equal names are one
 * phase. Where a plan moves objects at this entry, the call waits for the moves, at most 4 s. */
void tiercel_phase(const char *name);

/* As malloc, placed by `traits` (NULL: unspecified). Objects below 4 KiB share OS pages with
 * others, so traits do not apply to them. Free with tiercel_free or free. NULL and ENOMEM on
 * failure. */
void *tiercel_alloc(size_t bytes, const struct tiercel_traits *traits);

/* As tiercel_alloc, at a multiple of `align` bytes, a power of two. */
void *tiercel_aligned_alloc(size_t align, size_t bytes, const struct tiercel_traits *traits);

/* As free. */
void tiercel_free(void *memory);

/* As malloc. Objects below 4 KiB share OS pages with objects of the same temperature alone, so that
 * cold ones take no room beside hot ones; `temperature` does not apply to larger ones, which traits
 * place. `tiercel cc` makes such calls of malloc by itself (docs/compiler.md). */
void *tiercel_malloc_class(size_t bytes, enum tiercel_temperature temperature);

/* ---- Handles: small objects that may move ----------------------------------------------------
 *
 * Objects below 4 KiB share OS pages, and a pointer to one keeps it where it is. An object behind a
 * handle may be copied elsewhere while no pin holds it: what is pinned often goes among hot
 * objects, what is not goes among cold ones. It happens in calls of tiercel_handle_unpin, each of
 * which takes a sixteenth of a look at an object. From 4 KiB on an object stays. Calls are
 * thread-safe, and not for signal handlers. A forked child has its own objects behind the same
 * handles. tiercel.hpp wraps them in movable<T>. */
struct tiercel_handle;

/* As malloc; NULL and ENOMEM on failure. */
struct tiercel_handle *tiercel_handle_alloc(size_t bytes);

/* Where the object is until it is unpinned as often as it was pinned. It never waits. NULL and
 * EAGAIN: 32767 pins hold it. */
void *tiercel_handle_pin(struct tiercel_handle *handle);
void tiercel_handle_unpin(struct tiercel_handle *handle);

/* Moves it now, among hot or cold objects. Returns 0, or -1 and errno: EBUSY (pinned), ENOMEM (no
 * room), ENOTSUP (it is not small, or there are no two memories), EINVAL. */
int tiercel_handle_move(struct tiercel_handle *handle, enum tiercel_temperature temperature);

/* Ends an object. Returns 0, also for NULL, or -1 and errno: EBUSY (pinned; it lives). */
int tiercel_handle_free(struct tiercel_handle *handle);

/* Replaces the built-in strategy for all later calls of tiercel_alloc; NULL restores it. Not
 * thread-safe. */
void tiercel_set_strategy(tiercel_strategy *strategy, void *context);

/* As malloc, calloc, realloc and free, for libraries that take allocation functions with a context.
 * The context is a space: `(void *)TIERCEL_HIGH_BANDWIDTH`. Memory of one space may be freed
 * through another; tiercel_space_free ignores `bytes`. */
void *tiercel_space_malloc(void *space, size_t bytes);
void *tiercel_space_calloc(void *space, size_t count, size_t each);
void *tiercel_space_realloc(void *space, void *memory, size_t bytes);
void tiercel_space_free(void *space, void *memory, size_t bytes);

/* 1 when the runtime is loaded and attached to a daemon, otherwise 0. */
int tiercel_is_hosted(void);

/* ---- Vregions: memory that the program places itself (VMem, tables 1 and 3) -------------------
 *
 * As mmap, backed by a pool of the node that the caller runs on: a pool of the daemon (`--pool`),
 * or memory of the process itself. Only MAP_PRIVATE | MAP_ANONYMOUS is managed; any other mapping
 * is passed to mmap unchanged. A vpage has 4 KiB, 64 KiB with MAP_HUGE_64KB in `flags`, 2 MiB with
 * MAP_HUGE_2MB. MAP_POPULATE maps all of it at once. `bytes` is rounded up to vpages, addresses are
 * aligned to them. On failure MAP_FAILED and errno: ENOMEM (the pool or the memory is exhausted),
 * EINVAL, ENOSYS (no memfd), EFBIG (RLIMIT_FSIZE).
 *
 * munmap, mprotect and fork keep their meaning for private memory. madvise does not: MADV_DONTNEED
 * does not zero. Do not move buffers of direct I/O (O_DIRECT) while the I/O is in flight. */
void *tiercel_vregion_register(void *addr, size_t bytes, int prot, int flags, int fd, off_t offset);

/* Sets how first touches are served from now on, in all vregions. `around`: bytes populated at a
 * touch, a power of two from 4096 to 2 MiB (default 262144). `spin_us`: microseconds for which the
 * serving thread polls for the next touch before it sleeps, at most 1000000 (default 50). */
int tiercel_vregion_faults(size_t around, unsigned spin_us);

/* As munmap. This call and those below return 0, or -1 and errno: EINVAL (no vregion, or bounds
 * that cut a vpage), ENOMEM (the node is full), ENODEV (no such node), ENOTSUP (not available
 * here), EBUSY (another userfaultfd is registered on the range), EFAULT (the program mapped or
 * protected the range by a system call that the runtime did not see). */
int tiercel_vregion_release(void *addr, size_t bytes);

/* Migrates the range to `node` (the kernel's number) and places later touches there too. */
int tiercel_vregion_bind(void *addr, size_t bytes, int node);

/* Copies the range to `node` while the program runs, and keeps using the original. A later
 * migration to that node copies only what was written since. */
int tiercel_vregion_replicate(void *addr, size_t bytes, int node);

/* Copies the range to `node` while the program runs, then switches to the copy. The original stays
 * as a shadow, so that a migration back copies only what was written since. */
int tiercel_vregion_migrate(void *addr, size_t bytes, int node);

/* Starts tiercel_vregion_migrate on a thread of the runtime. Returns a ticket, from 1 on, or -1 and
 * errno (EAGAIN: 64 migrations are pending). */
long tiercel_vregion_start(void *addr, size_t bytes, int node);

/* Waits for the migration of `ticket` and returns its result. Once for each ticket. */
int tiercel_vregion_await(long ticket);

/* The node that holds the OS page of `addr`, or -1 and errno (ENOENT: not touched yet). */
int tiercel_vregion_node(const void *addr);

/* Sets how many threads copy in a migration, 1 to 16. 0, the default: up to 4, as far as CPUs idle
 * that no thread of the program uses. */
int tiercel_vregion_copiers(int threads);

#else /* Resolved at the first call, once for each file that includes this header. */

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

/* In the order of `names` below. */
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
    void *(*malloc_class)(size_t, enum tiercel_temperature);
    struct tiercel_handle *(*handle_alloc)(size_t);
    void *(*handle_pin)(struct tiercel_handle *);
    void (*handle_unpin)(struct tiercel_handle *);
    int (*handle_move)(struct tiercel_handle *, enum tiercel_temperature);
    int (*handle_free)(struct tiercel_handle *);
};

/* Threads that race resolve the same values. Copied as bytes: ISO C cannot convert to functions. */
TIERCEL_MAY_BE_UNUSED static const struct tiercel_calls *tiercel_find_calls(void) {
    static struct tiercel_calls calls;
    static int is_known;
    static const char *const names[] = {
        "tiercel_phase",           "tiercel_aligned_alloc",   "tiercel_free",
        "tiercel_set_strategy",    "tiercel_is_hosted",       "tiercel_vregion_register",
        "tiercel_vregion_release", "tiercel_vregion_bind",    "tiercel_vregion_replicate",
        "tiercel_vregion_migrate", "tiercel_vregion_start",   "tiercel_vregion_await",
        "tiercel_vregion_node",    "tiercel_vregion_copiers", "tiercel_vregion_faults",
        "tiercel_malloc_class",    "tiercel_handle_alloc",    "tiercel_handle_pin",
        "tiercel_handle_unpin",    "tiercel_handle_move",     "tiercel_handle_free"};
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

TIERCEL_MAY_BE_UNUSED static inline void *
tiercel_malloc_class(size_t bytes, enum tiercel_temperature temperature) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->malloc_class ? calls->malloc_class(bytes, temperature) : malloc(bytes);
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

/* Without the runtime: a handle is its object, which stays. */
TIERCEL_MAY_BE_UNUSED static inline struct tiercel_handle *tiercel_handle_alloc(size_t bytes) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->handle_alloc ? calls->handle_alloc(bytes)
                               : (struct tiercel_handle *)malloc(bytes);
}

TIERCEL_MAY_BE_UNUSED static inline void *tiercel_handle_pin(struct tiercel_handle *handle) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    return calls->handle_pin ? calls->handle_pin(handle) : (void *)handle;
}

TIERCEL_MAY_BE_UNUSED static inline void tiercel_handle_unpin(struct tiercel_handle *handle) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    if (calls->handle_unpin)
        calls->handle_unpin(handle);
}

TIERCEL_MAY_BE_UNUSED static inline int tiercel_handle_move(struct tiercel_handle *handle,
                                                            enum tiercel_temperature temperature) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    if (calls->handle_move)
        return calls->handle_move(handle, temperature);
    errno = ENOTSUP;
    return -1;
}

TIERCEL_MAY_BE_UNUSED static inline int tiercel_handle_free(struct tiercel_handle *handle) {
    const struct tiercel_calls *calls = tiercel_find_calls();
    if (calls->handle_free)
        return calls->handle_free(handle);
    free(handle);
    return 0;
}

/* Without the runtime: a mapping of the kernel, which does not migrate. */
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
