/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * heap_cache.c: objects from 4 KiB up: thread caches over the page heap, in-place growth, zeroing.
 * In: the requests of malloc.c. Out: objects on OS pages of their own; with tracking, a note of
 * each birth, death and resize. Knows nothing of how records reach the daemon or where arenas are.
 *
 *   <= 64 OS pages   thread cache, by arena and size class  --batches-->  page heap (heap.c)
 *   above            page heap
 *
 * A thread's TLS block has only a pointer to its cache, which comes from a pool that outlives
 * threads: a thread that exits returns its runs and leaves the cache to the next one.
 *
 * Long, because birth, growth and death of an object keep the same invariants of a run.
 */
#include "heap.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* The largest cached object: 64 * 4 KiB = 256 KiB. Chosen, not measured: above, the program's own
 * work on an object dwarfs a lock. */
#define CLASS_PAGES_MAX 64
#define CLASSES 32 /* the length of class_pages, and bits of cache.filled */
/* OS pages that a class may have in a thread's cache (512 KiB), or CLASS_KEEP_MIN runs. Chosen, not
 * measured: it bounds the memory that an idle thread keeps. */
#define CLASS_KEEP 128
#define CLASS_KEEP_MIN 4
/* OS pages of all classes together: all caches may have this share of what the heap uses, each at
 * most 4 MiB and at least 256 KiB. Chosen: with 64 KiB, eight threads that pass objects to each
 * other took 1.15 times as long. */
#define CACHES_SHARE 16
#define THREAD_KEEP_MAX 1024
#define THREAD_KEEP_MIN 64
/* OS pages fetched at a time (128 KiB) into a cache that may have them four times, at most
 * BATCH_RUNS runs. Chosen, not measured. */
#define BATCH 32
#define BATCH_RUNS 16

/* Growing objects (realloc that moved) reserve untouched addresses behind them: GROW_LARGE times
 * their size from GROW_FROM OS pages up to GROW_MAX, but GROW_SMALL times above that. An object
 * that is far from others costs 16 KiB, for a page table and for tables of objects on both sides:
 * below GROW_FAR (1 MiB, of which that is 1.6%) it reserves at most a quarter of what the heap
 * uses. Chosen, not measured: 256 MiB fit thousands of times into 1 TiB. */
#define GROW_SMALL 4
#define GROW_LARGE 64
#define GROW_SHARE 4
#define GROW_FROM 32
#define GROW_FAR ((size_t)(1 << 20) >> PAGE_SHIFT)
#define GROW_MAX ((size_t)(256u << 20) >> PAGE_SHIFT)

/* calloc of at least this many dirty OS pages lets the kernel zero them as they are touched: 8 MiB,
 * more than CPU caches of one core hold. memset takes 0.1 us an OS page and a fault 0.6, as
 * measured on the development machine. */
#define ZERO_BY_KERNEL 2048

#define LINE 64 /* bytes of a cache line, on x86-64 and most arm64 */

struct slot {
    uint32_t head; /* OS page number of a cached run, 0 none */
    uint32_t count;
};

struct cache {
    struct slot slots[TCL_ARENAS_MAX][CLASSES];
    uint32_t filled[TCL_ARENAS_MAX]; /* bit of a class clear: its slot is empty */
    size_t pages, keep;              /* what it has; what it may have, as of the last batch */
    struct cache *next;              /* in the pool */
};

/* The size classes: every size up to 16 OS pages, then every 2nd up to 32, every 4th up to 64. */
static const uint8_t class_pages[CLASSES] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                             12, 13, 14, 15, 16, 18, 20, 22, 24, 26, 28,
                                             30, 32, 36, 40, 44, 48, 52, 56, 60, 64};

static __thread struct cache *cache;
static __thread bool cache_closed; /* this thread is exiting */

static struct cache *pool;
static _Atomic unsigned caches_open; /* changed under pool_lock */
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t exit_key;
static pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;

static inline unsigned cache_class(size_t pages) {
    if (pages <= 16)
        return (unsigned)pages - 1;
    return pages <= 32 ? (unsigned)(pages + 1) / 2 + 7 : (unsigned)(pages + 3) / 4 + 15;
}

static inline unsigned keep_of(unsigned class) {
    unsigned runs = CLASS_KEEP / class_pages[class];
    return runs < CLASS_KEEP_MIN ? CLASS_KEEP_MIN : runs;
}

/* ---- Notes ----------------------------------------------------------------------------------- */

static struct tcl_use use_of(const struct run *run, uint8_t flags) {
    return (struct tcl_use){.addr = page_address(number_of(run)),
                            .bytes = (size_t)run->pages << PAGE_SHIFT,
                            .site = run->site,
                            .carve = run->carve,
                            .generation = run->generation,
                            .arena = run->arena,
                            .flags = flags};
}

/* An object that is about to be born in a run. */
struct birth {
    size_t bytes, pages;
    unsigned k;    /* the arena that its run came from */
    uint8_t arena; /* the same, or TCL_ARENA_UNKNOWN where its memory is not bound */
    uint8_t flags;
    bool can_choose; /* any run of its arena would do, as it needs no alignment */
    uint32_t site;
};

/* Makes a cached run the object. */
static inline void hand_out(struct run *run, const struct birth *birth, struct tcl_head head) {
    uint32_t pages = (uint32_t)birth->pages;
    bool is_fresh = 2 * (size_t)run->touched < pages;
    tcl_assert_debug(run->state == RUN_CACHED && pages > 0 && pages <= run->total);
    tcl_assert_debug(run->touched <= run->total);
    run->pages = pages;
    if (run->touched < pages)
        run->touched = pages;
    run->arena = birth->arena;
    run->site = birth->site;
    run->shift = 0;
    run->generation++;
    atomic_store_explicit(&run->state, RUN_LIVE, memory_order_relaxed);
    if (tcl_unlikely(tcl_tracking())) {
        struct tcl_use use = use_of(run, birth->flags | (is_fresh ? TCL_FRESH : 0));
        tcl_note_born(&use);
        if (tcl_unlikely(head.bytes))
            tcl_note_head(&use, head);
    }
}

/* Makes a run that was taken the object, or a dead one that lies better; binds a head of a large
 * one to better memory where only that much has room. Returns the object's run. *dirty: OS pages of
 * it that an earlier life touched. */
static inline struct run *make_object(struct run *run, struct birth birth, size_t *dirty) {
    struct tcl_head head = {0};
    if (tcl_unlikely(run->touched >= HOME_PAGES && birth.can_choose && tcl_tracking()))
        run = tcl_home_choose(run, birth.pages);
    if (tcl_unlikely(birth.pages >= SPLIT_PAGES && birth.k > 0 && birth.arena == birth.k) &&
        tcl_split_begin(run, birth.bytes, birth.site, &head))
        birth.arena = TCL_ARENA_UNKNOWN;
    *dirty = run->touched;
    hand_out(run, &birth, head);
    return run;
}

/* ---- Thread caches --------------------------------------------------------------------------- */

static void update_keep(struct cache *of) {
    unsigned caches = atomic_load_explicit(&caches_open, memory_order_relaxed);
    size_t keep = tcl_pages_used() / CACHES_SHARE / (caches ? caches : 1);
    keep = keep < THREAD_KEEP_MAX ? keep : THREAD_KEEP_MAX;
    of->keep = keep > THREAD_KEEP_MIN ? keep : THREAD_KEEP_MIN;
}

static inline void push(struct cache *to, unsigned k, unsigned class, struct run *run) {
    struct slot *slot = &to->slots[k][class];
    tcl_assert_debug(run->state == RUN_CACHED &&
                     class_pages[cache_class(run->total)] == run->total);
    tcl_assert_debug((slot->head == 0) == (slot->count == 0));
    run->next = slot->head;
    slot->head = (uint32_t)number_of(run);
    slot->count++;
    to->filled[k] |= 1u << class;
    to->pages += run->total;
}

/* Cuts a clean run into `count` runs of a class, the first to be handed out first. */
static void push_batch(struct cache *to, unsigned k, unsigned class, struct run *first,
                       unsigned count) {
    size_t number = number_of(first), pages = class_pages[class];
    for (unsigned i = count; i-- > 0;) {
        struct run *run = run_at(number + i * pages);
        run->total = (uint32_t)pages;
        run->touched = 0;
        run->carve = i ? tcl_next_carve() : first->carve;
        run->generation = 0;
        run->reserved = 0;
        if (pages > 1)
            run_at(number + (i + 1) * pages - 1)->state = RUN_NONE;
        run->state = RUN_CACHED;
        push(to, k, class, run);
    }
}

static unsigned batch_of(struct cache *to, size_t pages) {
    update_keep(to);
    size_t batch = to->keep / 4 < BATCH ? to->keep / 4 : BATCH;
    if (to->pages + batch > to->keep || batch < pages)
        return 1;
    return batch / pages < BATCH_RUNS ? (unsigned)(batch / pages) : BATCH_RUNS;
}

static bool refill(struct cache *to, unsigned k, unsigned class) {
    struct slot *slot = &to->slots[k][class];
    size_t pages = class_pages[class], fresh = 0;
    unsigned count = batch_of(to, pages);
    heap_lock(&tcl_heap_lock);
    struct run *run;
    /* Resident memory first, run by run; only then untouched memory. */
    while (slot->count < count && (run = tcl_pages_take(k, pages, 1, TAKE_DIRTY)) != NULL)
        push(to, k, class, run);
    if (!slot->count && (run = tcl_pages_take(k, pages * count, 1, TAKE_CLEAN)) != NULL) {
        tcl_pages_purge_for(k, run);
        push_batch(to, k, class, run, count);
        fresh = pages * count;
    }
    if (!slot->count && (run = tcl_pages_take(k, pages, 1, TAKE_ANY)) != NULL)
        push(to, k, class, run);
    heap_unlock(&tcl_heap_lock);
    if (fresh)
        tcl_small_exchange(fresh << PAGE_SHIFT);
    return slot->count != 0;
}

/* Returns all but `keep` runs of a slot. Under the lock. */
static void drain(struct cache *from, struct slot *slot, unsigned keep) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock));
    while (slot->count > keep) {
        struct run *run = run_at(slot->head);
        tcl_assert_debug(slot->head != 0 && from->pages >= run->total);
        slot->head = run->next;
        slot->count--;
        from->pages -= run->total;
        tcl_pages_give(run);
    }
}

static void drain_all(struct cache *from, unsigned divisor) {
    update_keep(from);
    heap_lock(&tcl_heap_lock);
    for (unsigned k = 0; k < TCL_ARENAS_MAX; k++)
        for (uint32_t filled = from->filled[k]; filled; filled &= filled - 1) {
            struct slot *slot = &from->slots[k][__builtin_ctz(filled)];
            drain(from, slot, divisor ? slot->count / divisor : 0);
            if (!slot->count)
                from->filled[k] &= ~(filled & -filled);
        }
    heap_unlock(&tcl_heap_lock);
}

static void thread_exits(void *value) {
    struct cache *mine = value;
    cache_closed = true;
    cache = NULL;
    drain_all(mine, 0);
    heap_lock(&pool_lock);
    mine->next = pool;
    pool = mine;
    caches_open--;
    heap_unlock(&pool_lock);
}

static void make_exit_key(void) {
    tcl_key_create(&exit_key, thread_exits);
}

static struct cache *open_cache(void) {
    if (cache_closed || !tcl_heap_range.base)
        return NULL;
    int saved = errno;
    heap_lock(&pool_lock);
    if (!pool) {
        const size_t bytes = 64 << 10; /* 30 caches of 2112 bytes. Chosen, not measured */
        struct cache *fresh =
            tcl_os_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t i = 0; fresh != MAP_FAILED && i < bytes / sizeof(struct cache); i++) {
            fresh[i].next = pool;
            pool = &fresh[i];
        }
    }
    struct cache *mine = pool;
    if (mine) {
        pool = mine->next;
        caches_open++;
    }
    heap_unlock(&pool_lock);
    if (mine) {
        update_keep(mine);
        cache = mine; /* first, because pthread_setspecific may allocate */
        pthread_once(&exit_key_once, make_exit_key);
        pthread_setspecific(exit_key, mine);
    }
    errno = saved;
    return mine;
}

void tcl_cache_flush(void) {
    if (cache)
        drain_all(cache, 0);
}

/* ---- Allocation ------------------------------------------------------------------------------ */

/* After a run was taken, or none: purges where due. Under the lock, which it releases. */
static struct run *finish_take(unsigned k, struct run *run) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock));
    size_t fresh = run ? run->total - run->reserved - run->touched : 0;
    if (run)
        tcl_pages_purge_for(k, run);
    heap_unlock(&tcl_heap_lock);
    if (fresh)
        tcl_small_exchange(fresh << PAGE_SHIFT);
    if (tcl_unlikely(tcl_purge_due))
        tcl_pages_purge(false);
    return run;
}

/* A run of the page heap, past the caches. */
static struct run *take_direct(unsigned k, size_t total, size_t align, enum take take) {
    heap_lock(&tcl_heap_lock);
    return finish_take(k, tcl_pages_take(k, total, align, take));
}

static struct run *take_cached(unsigned k, unsigned class) {
    struct cache *mine = cache;
    if (tcl_unlikely(!mine) && !(mine = open_cache()))
        return take_direct(k, class_pages[class], 1, TAKE_ANY);
    struct slot *slot = &mine->slots[k][class];
    if (tcl_unlikely(!slot->head)) {
        if (!refill(mine, k, class))
            return NULL;
        if (tcl_unlikely(tcl_purge_due))
            tcl_pages_purge(false);
    }
    struct run *run = run_at(slot->head);
    tcl_assert_debug(run->state == RUN_CACHED && run->total == class_pages[class]);
    tcl_assert_debug(slot->count > 0 && mine->pages >= run->total);
    tcl_assert_debug(tcl_arena_of_page(number_of(run)) == k);
    slot->head = run->next;
    slot->count--;
    mine->pages -= class_pages[class];
    return run;
}

static void zero_dirty(void *p, size_t dirty, size_t pages) {
    dirty = dirty < pages ? dirty : pages;
    if (dirty < ZERO_BY_KERNEL || tcl_os_clear((uintptr_t)p, dirty << PAGE_SHIFT) != 0)
        memset(p, 0, dirty << PAGE_SHIFT);
}

/* Bytes to skip before an object that does not fill its OS pages: a number of cache lines that
 * differs from run to run. Objects that all began on OS page boundaries would share the cache sets
 * of their first lines, and copies between them alias: sqlite3, whose buffers are 4368 bytes, spent
 * 1.6 times as long in read(2) and write(2), 1.27 times as long in all. */
static inline uint32_t shift_of(const struct run *run, size_t bytes, size_t pages) {
    uint32_t lines = (uint32_t)((pages << PAGE_SHIFT) - bytes) / LINE;
    lines = lines < PAGE / LINE ? lines + 1 : PAGE / LINE;
    uint32_t scattered = (uint32_t)number_of(run) * 0x9e3779b1u; /* Fibonacci hashing */
    return (uint32_t)((uint64_t)scattered * lines >> 32) * LINE;
}

void *tcl_run_alloc(size_t bytes, size_t align, bool zero, struct caller caller) {
    size_t pages = PAGES_OF(bytes), aligned = align <= PAGE ? 1 : align >> PAGE_SHIFT;
    struct birth birth = {.bytes = bytes, .pages = pages, .arena = TCL_ARENA_UNKNOWN};
    if (tcl_unlikely(tcl_tracking())) {
        struct tcl_birth here = tcl_birth_here(bytes, caller.return_address, caller.frame_address);
        birth.k = here.arena;
        birth.arena = tcl_arena_bind(here.arena);
        birth.site = here.site;
    }
    unsigned k = birth.k;
    struct run *run = NULL;
    if (tcl_unlikely(pages + aligned > tcl_heap_range.run_bytes >> PAGE_SHIFT))
        run = NULL; /* larger than the range, or there is none, or none yet */
    else if (tcl_unlikely(tcl_frugal) && pages > CLASS_PAGES_MAX)
        run = NULL; /* where memory is accounted, a large object is unmapped when it is freed */
    else if (tcl_likely(pages <= CLASS_PAGES_MAX && aligned == 1))
        run = take_cached(k, cache_class(pages));
    else
        run = take_direct(k, pages, aligned, TAKE_ANY);
    if (tcl_unlikely(!run)) {
        if (!tcl_heap_range.base) {
            tcl_heap_init();
            if (tcl_heap_range.base)
                return tcl_run_alloc(bytes, align, zero, caller);
        }
        return tcl_far_alloc(bytes, align);
    }
    birth.can_choose = aligned == 1;
    size_t dirty = 0;
    run = make_object(run, birth, &dirty);
    void *p = (void *)page_address(number_of(run));
    if (tcl_unlikely(pages > CLASS_PAGES_MAX &&
                     atomic_load_explicit(&tcl_vmem_start_pending, memory_order_relaxed)))
        tcl_vmem_start_if_large(); /* a program may make one large object and no other */
    if (tcl_unlikely(atomic_load_explicit(&tcl_limit_due, memory_order_relaxed)))
        tcl_limit_look();
    if (zero && dirty)
        zero_dirty(p, dirty, pages);
    if (tcl_likely(pages <= CLASS_PAGES_MAX && align <= LINE))
        run->shift = shift_of(run, bytes, pages);
    tcl_assert_debug(run->shift + bytes <= pages << PAGE_SHIFT && run->shift % LINE == 0);
    tcl_assert_debug(((uintptr_t)p + run->shift) % (align ? align : 1) == 0);
    return (char *)p + run->shift;
}

static void fail_free(void) __attribute__((noreturn, cold));

static void fail_free(void) {
    static const char text[] = "free(): double free or invalid pointer\n";
    tcl_abort_with(text, sizeof(text) - 1);
}

void tcl_run_free(void *p) {
    size_t number = page_number((uintptr_t)p);
    struct run *run = run_at(number);
    /* Faults above the opened memory, where no object ever was. */
    if (tcl_unlikely(run->state != RUN_LIVE || ((uintptr_t)p & (PAGE - 1)) != run->shift))
        fail_free();
    tcl_assert_debug(run->pages <= run->touched && run->touched <= run->total);
    if (tcl_unlikely(tcl_tracking())) {
        struct tcl_use use = use_of(run, 0);
        tcl_note_died(&use);
    }
    atomic_store_explicit(&run->state, RUN_CACHED, memory_order_relaxed);
    size_t total = run->total;
    struct cache *mine = cache;
    unsigned class;
    if (total <= CLASS_PAGES_MAX && class_pages[class = cache_class(total)] == total &&
        (tcl_likely(mine != NULL) || (mine = open_cache())) && total <= mine->keep / 2) {
        unsigned k = tcl_arena_of_page(number);
        struct slot *slot = &mine->slots[k][class];
        push(mine, k, class, run);
        if (tcl_unlikely(slot->count > keep_of(class))) {
            heap_lock(&tcl_heap_lock);
            drain(mine, slot, slot->count / 2);
            heap_unlock(&tcl_heap_lock);
        } else if (tcl_unlikely(mine->pages > mine->keep)) {
            drain_all(mine, 2);
        }
        return;
    }
    tcl_split_end(number, 0, false);
    heap_lock(&tcl_heap_lock);
    tcl_pages_give(run);
    heap_unlock(&tcl_heap_lock);
}

static inline size_t usable(const struct run *run) {
    return ((size_t)run->pages << PAGE_SHIFT) - run->shift;
}

size_t tcl_run_usable(const void *p) {
    return usable(run_at(page_number((uintptr_t)p)));
}

/* ---- Resizing -------------------------------------------------------------------------------- */

/* OS pages of address space for a growing object of `pages`. */
static size_t room_to_grow(size_t pages) {
    if (tcl_frugal)
        return pages;
    size_t most = pages * GROW_LARGE < GROW_MAX ? pages * GROW_LARGE : GROW_MAX;
    size_t share = tcl_pages_used() / GROW_SHARE;
    if (pages < GROW_FAR && most > share)
        most = share;
    return most < pages * GROW_SMALL ? pages * GROW_SMALL : most;
}

static void note_resized(struct run *run, size_t pages) {
    run->pages = (uint32_t)pages;
    if (run->touched < pages)
        run->touched = (uint32_t)pages;
    run->generation++;
    if (tcl_unlikely(tcl_tracking())) {
        struct tcl_use use = use_of(run, 0);
        tcl_note_resized(&use);
    }
}

/* What a resize changes is charged to the run's arena, or refunded: its death refunds what it has
 * then. False: the arena has no room. */
static bool charge_resize(const struct run *run, size_t pages) {
    if (tcl_likely(!tcl_tracking()))
        return true;
    if (pages > run->pages)
        return tcl_birth_grow(run->arena, (pages - run->pages) << PAGE_SHIFT);
    tcl_birth_refund(run->arena, (run->pages - pages) << PAGE_SHIFT);
    return true;
}

static bool resize_in_place(struct run *run, size_t pages) {
    size_t total = run->total;
    if (pages > total && pages < GROW_FROM)
        return false; /* a run that fits no size class would bypass the cache when freed */
    if (!charge_resize(run, pages))
        return false; /* what moves is born where there is room */
    if (pages <= total) {
        /* Counts growth when it has doubled the object, not each time: that takes the lock. */
        if (pages > run->pages && total - run->reserved < pages / 2) {
            heap_lock(&tcl_heap_lock);
            tcl_pages_count_growth(run, pages);
            heap_unlock(&tcl_heap_lock);
        }
        /* Free a tail only when it is worth a lock: a quarter of the run and 64 KiB. Chosen, not
         * measured. */
        if (pages < run->pages && total - pages >= 16 && total - pages >= total / 4) {
            /* The contents of what a thread's cache may take are kept: it knows of no head. */
            bool is_small = pages <= CLASS_PAGES_MAX;
            tcl_split_end(number_of(run), pages, false);
            if (is_small)
                tcl_split_end(number_of(run), 0, true);
            heap_lock(&tcl_heap_lock);
            tcl_pages_trim(run, pages);
            heap_unlock(&tcl_heap_lock);
        }
    } else {
        heap_lock(&tcl_heap_lock);
        bool grown = tcl_pages_extend(run, pages, room_to_grow(pages));
        heap_unlock(&tcl_heap_lock);
        if (!grown) {
            if (tcl_unlikely(tcl_tracking()))
                tcl_birth_refund(run->arena, (pages - run->pages) << PAGE_SHIFT);
            return false;
        }
    }
    if (pages != run->pages)
        note_resized(run, pages);
    return true;
}

/* A new run for a growing object, with room behind it. */
static struct run *take_growing(unsigned k, size_t pages) {
    if (pages < GROW_FROM)
        return take_cached(k, cache_class(pages + pages / 4));
    heap_lock(&tcl_heap_lock);
    return finish_take(k, tcl_pages_take_growing(k, pages, room_to_grow(pages)));
}

void *tcl_run_realloc(void *p, size_t bytes, struct caller caller) {
    struct run *run = run_at(page_number((uintptr_t)p));
    if (tcl_unlikely(run->state != RUN_LIVE || ((uintptr_t)p & (PAGE - 1)) != run->shift))
        fail_free();
    size_t pages = PAGES_OF(bytes + run->shift);
    if (pages == run->pages || resize_in_place(run, pages))
        return p;
    pages = PAGES_OF(bytes);
    struct birth birth = {.bytes = bytes,
                          .pages = pages,
                          .k = tcl_arena_of_page(number_of(run)),
                          .arena = run->arena,
                          .flags = TCL_CONTINUED,
                          .site = run->site,
                          .can_choose = true};
    if (tcl_unlikely(tcl_tracking())) {
        birth.k = tcl_birth_arena(bytes, run->site);
        birth.arena = tcl_arena_bind(birth.k);
    }
    size_t old = usable(run), dirty;
    struct run *moved = NULL;
    if (pages <= tcl_heap_range.run_bytes >> PAGE_SHIFT)
        moved = take_growing(birth.k, pages);
    if (moved)
        moved = make_object(moved, birth, &dirty);
    void *to =
        moved ? (void *)page_address(number_of(moved)) : tcl_run_alloc(bytes, 1, false, caller);
    if (!to)
        return NULL;
    memcpy(to, p, old < bytes ? old : bytes);
    tcl_run_free(p);
    return to;
}

/* ---- Live objects, and fork ------------------------------------------------------------------ */

void tcl_range(uintptr_t *base, size_t *pages) {
    tcl_heap_init();
    *base = tcl_heap_range.base;
    *pages = tcl_heap_range.pages;
}

struct visitor {
    void (*visit)(const struct tcl_use *, void *);
    void *context;
};

static void visit_run(struct run *run, void *context) {
    struct visitor *visitor = context;
    if (atomic_load_explicit(&run->state, memory_order_relaxed) != RUN_LIVE)
        return;
    struct tcl_use use = use_of(run, 0);
    visitor->visit(&use, visitor->context);
    /* Another thread, which needs no lock, has freed it: its note may have come too early. */
    if (atomic_load_explicit(&run->state, memory_order_acquire) != RUN_LIVE)
        tcl_note_died(&use);
}

void tcl_heap_each(void (*visit)(const struct tcl_use *, void *), void *context) {
    struct visitor visitor = {visit, context};
    heap_lock(&tcl_heap_lock);
    tcl_pages_each(visit_run, &visitor);
    heap_unlock(&tcl_heap_lock);
    tcl_small_each(visit, context);
}

static bool fork_holds_pool, fork_holds_heap; /* each under its lock */

void tcl_heap_before_fork(void) {
    tcl_small_before_fork();
    fork_holds_pool = heap_lock_for_fork(&pool_lock);
    fork_holds_heap = heap_lock_for_fork(&tcl_heap_lock);
    tcl_far_before_fork();
}

void tcl_heap_after_fork_parent(void) {
    tcl_far_after_fork();
    if (fork_holds_heap)
        heap_unlock(&tcl_heap_lock);
    if (fork_holds_pool)
        heap_unlock(&pool_lock);
    tcl_small_after_fork();
}

void tcl_heap_after_fork_child(void) {
    tcl_far_after_fork_child();
    if (!fork_holds_heap)
        heap_lock_inherit(&tcl_heap_lock);
    if (!fork_holds_pool)
        heap_lock_inherit(&pool_lock);
    tcl_heap_after_fork_parent();
}
