/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * probe.c: the runtime's side of include/tiercel_probe.h: modules of compiled code, and the filter
 * of what they access.
 * In: modules that are loaded, accesses to sampled lines. Out: limits and hooks; misses for
 * cells.c. Knows nothing of compilers.
 *
 * Of the lines a share is sampled, and the caches are that share of the size: what hits and misses
 * among them is what would among all. L1 and L2 belong to a thread, the last level to the process,
 * with a lock for each set. Levels are filled on the way in and hold what they like (neither
 * inclusive nor exclusive); written lines go one level out when they leave. Caches of threads do
 * not take lines from each other.
 */
#include "probe.h"
#include "../../include/tiercel_probe.h"
#include "../track/session.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* Executables and libraries of one process; of more, the accesses are not seen. Chosen. */
#define MODULES_MAX 256u
/* Limits on what the control page says. */
#define SHIFT_MAX 6u
#define WAYS_MAX 32u
#define SETS_MAX (1u << 20)
/* Stamps, by OS page: 4 bytes each. Chosen. */
#define STAMPS 65536u
/* OS pages whose stamps a death changes one by one; of larger objects, all at once. */
#define STAMPED_PAGES_MAX 1024u

struct probe_thread {
    uint64_t last; /* line + 1 of the last access */
    bool last_was_written;
    volatile uint8_t is_busy; /* a signal handler's accesses are not seen */
    struct tcl_cache l1, l2;
    struct probe_thread *next, *previous;
    size_t bytes; /* of the mapping */
    struct tcl_cells cells;
};
static _Thread_local struct probe_thread *mine;
static _Thread_local bool has_ended;

static _Atomic uint32_t list_lock;
static struct probe_thread *threads;                            /* under list_lock */
static const struct tiercel_probe_module *modules[MODULES_MAX]; /* under list_lock */

/* Set once, by the first module that finds the process attached and lines to be sampled. */
static struct tcl_probe_terms terms;
static struct tcl_cache last_level;
static _Atomic uint8_t *set_locks;
static _Atomic bool is_ready;

static _Atomic uint32_t stamps[STAMPS], all_stamps;

/* ---- Stamps ---------------------------------------------------------------------------------- */

uint32_t tcl_probe_stamp(uint64_t page) {
    uint32_t own = atomic_load_explicit(&stamps[page / TCL_PAGE % STAMPS], memory_order_relaxed);
    return own + atomic_load_explicit(&all_stamps, memory_order_relaxed);
}

void tcl_probe_phase(void) {
    atomic_fetch_add_explicit(&all_stamps, 1, memory_order_relaxed);
}

void tcl_probe_died(uintptr_t addr, size_t bytes) {
    if (tcl_likely(!atomic_load_explicit(&is_ready, memory_order_relaxed)))
        return;
    size_t pages = bytes / TCL_PAGE, first = addr / TCL_PAGE;
    if (pages > STAMPED_PAGES_MAX)
        return tcl_probe_phase();
    for (size_t n = 0; n < pages; n++)
        atomic_fetch_add_explicit(&stamps[(first + n) % STAMPS], 1, memory_order_relaxed);
}

/* ---- The filter ------------------------------------------------------------------------------ */

static uint32_t lock_set(uint64_t line) {
    uint32_t set = (uint32_t)tcl_cache_set(&last_level, line);
    if (tcl_is_single_threaded())
        return set; /* none can begin before the set is unlocked */
    while (atomic_exchange_explicit(&set_locks[set], 1, memory_order_acquire))
        while (atomic_load_explicit(&set_locks[set], memory_order_relaxed))
            ;
    return set;
}

static void unlock_set(uint32_t set) {
    atomic_store_explicit(&set_locks[set], 0, memory_order_release);
}

/* A written line left a thread's caches. */
static void soil_last_level(uint64_t line) {
    uint32_t set = lock_set(line);
    tcl_cache_soil(&last_level, line);
    unlock_set(set);
}

static void fill_own(const struct tcl_cache *cache, const struct tcl_cache *next, uint64_t line,
                     bool writes) {
    uint64_t left;
    if (tcl_cache_fill(cache, line, writes, &left) && !(next && tcl_cache_soil(next, left)))
        soil_last_level(left);
}

/* Reads a line of the last level, into which it is brought where it is not there. */
static enum tcl_cached use_last_level(uint64_t line) {
    uint64_t left;
    uint32_t set = lock_set(line);
    enum tcl_cached was = tcl_cache_use(&last_level, line, false);
    if (!was)
        tcl_cache_fill(&last_level, line, false, &left);
    unlock_set(set);
    return was;
}

static bool is_dirty_in_last_level(uint64_t line) {
    uint32_t set = lock_set(line);
    bool is_dirty = tcl_cache_holds_dirty(&last_level, line);
    unlock_set(set);
    return is_dirty;
}

/* What compiled code says of an access. */
struct probe_access {
    uint32_t what;
    uintptr_t from;
};

/* Brings a line into L1 that is not there; how the further levels had it. */
static enum tcl_cached fetch(struct probe_thread *thread, uint64_t line, bool dirties) {
    enum tcl_cached was = tcl_cache_use(&thread->l2, line, false);
    if (!was) {
        was = use_last_level(line);
        fill_own(&thread->l2, NULL, line, false);
    } else if (dirties && was == TCL_CACHED_CLEAN && is_dirty_in_last_level(line)) {
        was = TCL_CACHED_DIRTY;
    }
    fill_own(&thread->l1, &thread->l2, line, dirties);
    return was;
}

static void filter(struct probe_thread *thread, uint64_t line, struct probe_access access) {
    bool dirties = access.what & TIERCEL_PROBE_DIRTIES;
    bool is_write = access.what & TIERCEL_PROBE_WRITES;
    bool misses = false;
    enum tcl_cached was = tcl_cache_use(&thread->l1, line, dirties);
    if (!was) {
        was = fetch(thread, line, dirties);
        misses = !was;
    } else if (dirties && was == TCL_CACHED_CLEAN &&
               (tcl_cache_holds_dirty(&thread->l2, line) || is_dirty_in_last_level(line))) {
        was = TCL_CACHED_DIRTY;
    }
    bool is_first_write = dirties && was != TCL_CACHED_DIRTY;
    struct tcl_miss miss = {.reads = misses && !is_write,
                            .writes = misses && is_write,
                            .dirties = is_first_write,
                            .pattern = access.what >> TIERCEL_PROBE_PATTERN_SHIFT & 3,
                            .from = access.from};
    if (misses || is_first_write)
        tcl_cells_count(&thread->cells, line << TCL_LINE_SHIFT, miss);
}

static inline bool is_sampled(uint64_t line) {
    return (uint32_t)(line << TCL_LINE_SHIFT) * TIERCEL_PROBE_HASH < terms.limit;
}

/* It was the last one, and that was written if this writes. */
static inline bool is_repeated(const struct probe_thread *thread, uint64_t line, uint32_t what) {
    bool dirties = what & TIERCEL_PROBE_DIRTIES;
    return thread->last == line + 1 && (!dirties || thread->last_was_written);
}

static inline void access_line(struct probe_thread *thread, uint64_t line,
                               struct probe_access access) {
    if (is_repeated(thread, line, access.what))
        return;
    thread->last_was_written = access.what & TIERCEL_PROBE_DIRTIES;
    thread->last = line + 1;
    filter(thread, line, access);
}

/* ---- Threads --------------------------------------------------------------------------------- */

static void set_limits(uint32_t limit);

static struct probe_thread *map_thread(void) {
    size_t l1 = tcl_cache_bytes(terms.caches[0]), l2 = tcl_cache_bytes(terms.caches[1]);
    size_t bytes = sizeof(struct probe_thread) + l1 + l2;
    struct probe_thread *thread =
        tcl_os_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (thread == MAP_FAILED)
        return NULL;
    uint64_t *sets = (uint64_t *)(thread + 1);
    thread->bytes = bytes;
    thread->l1 = tcl_cache_in(sets, terms.caches[0]);
    thread->l2 = tcl_cache_in(sets + l1 / sizeof(*sets), terms.caches[1]);
    return thread;
}

/* The calling thread's state is new, or was a parent's. NULL: it is not seen. */
static struct probe_thread *begin_thread(void) {
    int saved = errno;
    struct probe_thread *thread = NULL;
    /* Its ring's owner learns when the thread ends. */
    if (!has_ended && tcl_ring_attend() && tcl_lock(&list_lock)) {
        thread = map_thread();
        if (thread) {
            thread->next = threads;
            if (threads)
                threads->previous = thread;
            threads = mine = thread;
        }
        tcl_unlock(&list_lock);
    }
    errno = saved;
    return thread;
}

/* The state, marked as busy; NULL: nothing is to be done. */
static inline struct probe_thread *take_thread(void) {
    struct probe_thread *thread = mine;
    if (tcl_unlikely(!tcl_attached())) {
        if (!tcl_tracking())
            set_limits(0);
        return NULL;
    }
    if (tcl_unlikely(!thread) && !(thread = begin_thread()))
        return NULL;
    if (tcl_unlikely(thread->is_busy))
        return NULL;
    thread->is_busy = 1;
    atomic_signal_fence(memory_order_seq_cst);
    return thread;
}

static inline void give_back(struct probe_thread *thread) {
    atomic_signal_fence(memory_order_seq_cst);
    thread->is_busy = 0;
}

/* Lines from the first to the last. Not inlined, so that only what is filtered pays for its
 * frame. */
__attribute__((noinline)) static void access_lines(uint64_t first, uint64_t last,
                                                   struct probe_access access) {
    struct probe_thread *thread = take_thread();
    if (!thread)
        return;
    for (uint64_t line = first; line <= last; line++)
        if (is_sampled(line))
            access_line(thread, line, access);
    give_back(thread);
}

static void access_hook(uintptr_t addr, uint32_t what, uintptr_t from) {
    uint64_t first = addr >> TCL_LINE_SHIFT;
    uint64_t last = (addr + (what >> TIERCEL_PROBE_SPAN_SHIFT) - 1) >> TCL_LINE_SHIFT;
    const struct probe_thread *thread = mine;
    if (tcl_likely(thread && first == last && is_repeated(thread, first, what)))
        return;
    access_lines(first, last, (struct probe_access){what, from});
}

static void range_hook(uintptr_t addr, uintptr_t bytes, uint32_t what, uintptr_t from) {
    if (bytes && addr + bytes >= addr)
        access_lines(addr >> TCL_LINE_SHIFT, (addr + bytes - 1) >> TCL_LINE_SHIFT,
                     (struct probe_access){what, from});
}

void tcl_probe_thread_ends(void) {
    struct probe_thread *thread = mine;
    has_ended = true;
    if (!thread || !tcl_lock(&list_lock))
        return;
    mine = NULL;
    thread->is_busy = 1;
    tcl_cells_flush(&thread->cells);
    *(thread->previous ? &thread->previous->next : &threads) = thread->next;
    if (thread->next)
        thread->next->previous = thread->previous;
    tcl_unlock(&list_lock);
    tcl_os_munmap(thread, thread->bytes);
}

/* ---- Fork ------------------------------------------------------------------------------------ */

void tcl_probe_after_fork_child(void) {
    atomic_store(&list_lock, 0);
    /* Threads that held them are not in the child. */
    for (uint32_t set = 0; set < last_level.set_count; set++)
        atomic_store_explicit(&set_locks[set], 0, memory_order_relaxed);
    threads = mine;
    if (!mine)
        return;
    mine->next = mine->previous = NULL;
    mine->is_busy = 0;
    tcl_cells_forget(&mine->cells);
}

/* ---- Modules --------------------------------------------------------------------------------- */

static uint32_t clamped(uint32_t value, uint32_t most) {
    return value < 1 ? 1 : value > most ? most : value;
}

/* What the daemon asks for; false: nothing, or there is no memory for it. Under list_lock. */
static bool prepare_filter(void) {
    if (atomic_load(&is_ready))
        return true;
    terms = tcl_control()->probe;
    if (!terms.limit)
        return false;
    terms.shift = terms.shift > SHIFT_MAX ? SHIFT_MAX : terms.shift;
    for (int level = 0; level < 3; level++) {
        terms.caches[level].sets = clamped(terms.caches[level].sets, SETS_MAX);
        terms.caches[level].ways = clamped(terms.caches[level].ways, WAYS_MAX);
    }
    size_t sets = tcl_cache_bytes(terms.caches[2]), locks = terms.caches[2].sets;
    void *memory =
        tcl_os_mmap(NULL, sets + locks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    last_level = tcl_cache_in(memory, terms.caches[2]);
    set_locks = (_Atomic uint8_t *)((char *)memory + sets);
    atomic_store(&is_ready, true);
    return true;
}

uint32_t tcl_probe_shift(void) {
    return terms.shift;
}

static void begin_module(const struct tiercel_probe_module *module) {
    *module->access = access_hook;
    *module->range = range_hook;
    __atomic_store_n(module->limit, terms.limit, __ATOMIC_RELEASE);
}

static void set_limits(uint32_t limit) {
    for (uint32_t n = 0; n < MODULES_MAX; n++)
        if (modules[n])
            __atomic_store_n(modules[n]->limit, limit, __ATOMIC_RELAXED);
}

void tcl_probe_attached(void) {
    int saved = errno;
    if (tcl_lock(&list_lock)) {
        bool has_any = false;
        for (uint32_t n = 0; n < MODULES_MAX && !has_any; n++)
            has_any = modules[n] != NULL;
        if (has_any)
            tcl_remark(TCL_REMARK_PROBED);
        if (has_any && prepare_filter())
            for (uint32_t n = 0; n < MODULES_MAX; n++)
                if (modules[n])
                    begin_module(modules[n]);
        tcl_unlock(&list_lock);
    }
    errno = saved;
}

TCL_EXPORT void tiercel_probe_join(const struct tiercel_probe_module *module) {
    if (module->version != TIERCEL_PROBE_VERSION || !tcl_lock(&list_lock))
        return;
    uint32_t n = 0;
    while (n < MODULES_MAX && modules[n])
        n++;
    if (n < MODULES_MAX)
        modules[n] = module;
    tcl_unlock(&list_lock);
    if (n < MODULES_MAX && tcl_tracking() && tcl_attached())
        tcl_probe_attached();
}

/* Once no module is left, the program is ending: what other threads have in their cells is reported
 * now. None adds to them, as all limits are 0. */
static void report_all(void) {
    for (uint32_t n = 0; n < MODULES_MAX; n++)
        if (modules[n])
            return;
    for (struct probe_thread *thread = threads; thread; thread = thread->next)
        if (!thread->is_busy)
            tcl_cells_flush(&thread->cells);
}

TCL_EXPORT void tiercel_probe_leave(const struct tiercel_probe_module *module) {
    __atomic_store_n(module->limit, 0, __ATOMIC_SEQ_CST);
    if (!tcl_lock(&list_lock))
        return;
    for (uint32_t n = 0; n < MODULES_MAX; n++)
        if (modules[n] == module)
            modules[n] = NULL;
    tcl_mark_forget();
    if (tcl_tracking() && tcl_attached())
        report_all();
    tcl_unlock(&list_lock);
}
