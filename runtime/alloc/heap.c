/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * heap.c: the page heap, which cuts a reserved range of addresses into runs and coalesces them
 * again. In: requests for runs of so many OS pages in arena k. Out: runs, with a fresh carve number
 * each. Knows nothing of threads' caches, objects, sites or small slots.
 *
 * Free runs are in bins by size, clean (zero, not resident) and dirty (resident) ones apart, and
 * coalesce only with neighbours of their own kind and arena. Dirty ones are taken first, which
 * keeps the resident size down. A purge makes dirty runs clean, outside the lock, the biggest
 * first, and only as many OS pages as were idle for a while: a synchronous cap costs 40 to 170 us
 * an operation.
 *
 * Long, because the assertions are beside the code whose invariants they check.
 */
#include "heap.h"
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* 2^26 = 64 MiB: the step in which an arena claims parts of the range. Chosen, not measured; its
 * metadata are whole OS pages, as asserted below. */
#define UNIT_SHIFT 26
#define UNIT ((size_t)1 << UNIT_SHIFT)
#define UNITS_MAX (TCL_RANGE_MAX >> UNIT_SHIFT)
_Static_assert((UNIT >> PAGE_SHIFT) * sizeof(struct run) % TCL_PAGE == 0, "opened by units");
_Static_assert((UNIT >> SLICE_SHIFT) * sizeof(void *) % TCL_PAGE == 0, "opened by units");
/* A chunk is as large as the open heap, within a unit and this. Chosen, not measured. */
#define CHUNK_MAX ((size_t)1 << 30)
/* Memory is opened (made accessible) in steps of an eighth of what is open, within these. Chosen,
 * not measured: at most 1/8 of the opened memory is unused, and mprotect calls stay few. */
#define OPEN_MIN ((size_t)1 << 20)
#define OPEN_MAX UNIT

/* Bins of one size each; above, eight bins a doubling, which bounds the waste of a search to 1/8.
 * Chosen, not measured. */
#define EXACT 64
/* 64 + 8 * (28 - 6): runs have up to 2^28 OS pages, a whole range. */
#define BINS 248
/* Runs examined in a bin whose runs may be too small. Chosen, not measured: bounds the search. */
#define BIN_SEARCH 8

#define HUGE_PAGES 512 /* OS pages of a huge one of x86-64: 2 MiB / 4 KiB */

/* A purge releases what was dirty throughout the last window: the program did not need it. Chosen,
 * not measured: longer than most phases of allocating and freeing the same memory again. */
#define PURGE_WINDOW_MS 500
/* Runs purged each time the lock is released, and how often that is at most in one call. Chosen,
 * not measured: they bound the latency of the call that finds a purge due. */
#define PURGE_BATCH 16
#define PURGE_ROUNDS 64
/* Dirty memory that the heap may have: this share of what is used, and 256 KiB. A program whose
 * objects grow and shrink in a heap of 6 MiB had as much dirty memory again without it, and no more
 * CPU time with it. */
#define DIRTY_SHARE 16
#define DIRTY_MIN ((size_t)(256 << 10) / TCL_PAGE)
/* Fresh memory to be touched before dirty memory beyond that is purged in exchange: 256 KiB.
 * Estimated: first touches of 64 OS pages take some 30 us, the purge of as many half of that. */
#define EXCHANGE_MIN ((size_t)(256 << 10) / TCL_PAGE)
/* OS pages that are purged in exchange, for each millisecond and at once: some 100 MiB/s and 16
 * MiB. A purge and the next first touch take 0.75 us an OS page, as measured on the development
 * machine, so this is 2% of the time and 3 ms. A program that replaced 60 objects of 64 KiB to 4
 * MiB all the time took twice the CPU time without this limit. */
#define EXCHANGE_RATE 27
#define EXCHANGE_BURST ((size_t)(16 << 20) / TCL_PAGE)
/* The smallest clean part of a run that purges dirty memory first: 1 MiB. Chosen, not measured: a
 * system call must be cheap beside the first touches. */
#define PURGE_FOR_MIN ((size_t)(1 << 20) / TCL_PAGE)

struct bins {
    uint64_t map[(BINS + 63) / 64]; /* bit set: bin not empty */
    uint32_t head[BINS];
};

/* A piece of the range that belongs to one arena: runs fill [start, opened) without a gap. */
struct chunk {
    uintptr_t start, opened, end;
};

struct arena {
    struct bins clean, dirty;
    struct chunk *chunk; /* the latest */
    int node;            /* bound to it, -1 none */
    size_t dirty_pages;  /* in its dirty runs */
};

struct range tcl_heap_range;
pthread_mutex_t tcl_heap_lock = PTHREAD_MUTEX_INITIALIZER;
_Atomic bool tcl_purge_due;

static struct chunk chunks[UNITS_MAX / 2], no_chunk;
static size_t chunk_count;
static struct arena arenas[TCL_ARENAS_MAX] = {
    [0 ... TCL_ARENAS_MAX - 1] = {.chunk = &no_chunk, .node = -1},
};
static uint8_t unit_arena[UNITS_MAX]; /* arena + 1, by 64 MiB of the range */
static uintptr_t next_small, next_runs;
static size_t pages_open, pages_dirty, pages_clean;
static size_t pages_reserved; /* the sum of `reserved` of all runs */
static size_t pages_used;     /* open, but not dirty, clean or reserved */
static size_t pages_fresh;    /* taken clean while there was too much dirty memory */
static size_t exchange_left = EXCHANGE_BURST; /* OS pages, as of exchange_ms */
static uint64_t exchange_ms;
static size_t pages_dirty_low; /* the least pages_dirty of this window */
static uint64_t window_end_ms;

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

unsigned tcl_arena_of_page(size_t number) {
    return unit_arena[number >> (UNIT_SHIFT - PAGE_SHIFT)] - 1u;
}

/* ---- Bins ------------------------------------------------------------------------------------ */

static unsigned bin_of(size_t total) {
    if (total <= EXACT)
        return (unsigned)total - 1;
    unsigned log = 63u - (unsigned)__builtin_clzll(total);
    return EXACT + (log - 6) * 8 + ((unsigned)(total >> (log - 3)) & 7);
}

/* For assertions: the first and the last entry of a free run agree, and it is in opened memory. */
static __attribute__((unused)) bool is_free_run(const struct run *run) {
    size_t number = number_of(run);
    const struct run *tail = run_at(number + run->total - 1);
    return (run->state == RUN_CLEAN || run->state == RUN_DIRTY) && run->total > 0 &&
           tail->state == run->state && tail->total == run->total &&
           page_address(number) >= range_runs() && page_address(number + run->total) <= next_runs &&
           tcl_arena_of_page(number) == tcl_arena_of_page(number + run->total - 1);
}

/* For assertions: a run outside of the bins, the program's or a cache's. */
static __attribute__((unused)) bool is_used_run(const struct run *run) {
    return (run->state == RUN_LIVE || run->state == RUN_CACHED) && run->total > 0 &&
           run->touched <= run->total;
}

static void link_free(struct bins *bins, struct run *run) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock));
    tcl_assert_debug(is_free_run(run));
    unsigned bin = bin_of(run->total);
    uint32_t number = (uint32_t)number_of(run), head = bins->head[bin];
    run->prev = 0;
    run->next = head;
    if (head)
        run_at(head)->prev = number;
    bins->head[bin] = number;
    bins->map[bin / 64] |= 1ull << (bin % 64);
}

static void unlink_free(struct run *run) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock));
    tcl_assert_debug(is_free_run(run));
    struct arena *arena = &arenas[tcl_arena_of_page(number_of(run))];
    struct bins *bins = run->state == RUN_DIRTY ? &arena->dirty : &arena->clean;
    unsigned bin = bin_of(run->total);
    tcl_assert_debug(!run->next || run_at(run->next)->prev == number_of(run));
    tcl_assert_debug(run->prev ? run_at(run->prev)->next == number_of(run)
                               : bins->head[bin] == number_of(run));
    tcl_assert_debug(run->total <= (run->state == RUN_CLEAN ? pages_clean : pages_dirty));
    if (run->next)
        run_at(run->next)->prev = run->prev;
    if (run->prev)
        run_at(run->prev)->next = run->next;
    else if (!(bins->head[bin] = run->next))
        bins->map[bin / 64] &= ~(1ull << (bin % 64));
    if (run->state == RUN_CLEAN) {
        pages_clean -= run->total;
        return;
    }
    pages_dirty -= run->total;
    arena->dirty_pages -= run->total;
    if (pages_dirty_low > pages_dirty)
        pages_dirty_low = pages_dirty;
}

/* Makes [number, number + total) a free run, joined with free neighbours of the same state. The
 * entries on both sides must be valid: see `fence`. */
static void insert_free(size_t number, size_t total, enum run_state state) {
    tcl_assert(total > 0 && page_address(number + total) <= next_runs);
    unsigned arena = tcl_arena_of_page(number);
    tcl_assert_debug(tcl_arena_of_page(number + total - 1) == arena);
    if (number > page_number(range_runs())) {
        struct run *tail = run_at(number - 1);
        if (tail->state == state && tcl_arena_of_page(number - 1) == arena) {
            struct run *before = run_at(number - tail->total);
            unlink_free(before);
            number -= before->total;
            total += before->total;
        }
    }
    size_t end = number + total;
    if (page_address(end) < next_runs) {
        struct run *after = run_at(end);
        if (after->state == state && tcl_arena_of_page(end) == arena) {
            unlink_free(after);
            total += after->total;
        }
    }
    struct run *run = run_at(number), *tail = run_at(number + total - 1);
    run->total = tail->total = (uint32_t)total;
    run->state = tail->state = (uint8_t)state;
    link_free(state == RUN_DIRTY ? &arenas[arena].dirty : &arenas[arena].clean, run);
    *(state == RUN_DIRTY ? &pages_dirty : &pages_clean) += total;
    if (state == RUN_DIRTY)
        arenas[arena].dirty_pages += total;
}

/* Before the second part of a run becomes free on its own: clears the entry in front of it, which
 * was inside of the run until now and may hold anything. */
static void fence(const struct run *run, size_t second) {
    if (second > number_of(run) + 1)
        run_at(second - 1)->state = RUN_NONE;
}

/* A free run of at least `total` OS pages, still linked; NULL when there is none. */
static struct run *find_free(const struct bins *bins, size_t total) {
    unsigned bin = bin_of(total);
    if (total <= EXACT) {
        if (bins->head[bin])
            return run_at(bins->head[bin]);
    } else {
        uint32_t number = bins->head[bin];
        for (int i = 0; number && i < BIN_SEARCH; i++, number = run_at(number)->next)
            if (run_at(number)->total >= total)
                return run_at(number);
    }
    for (unsigned first = ++bin / 64, i = first; i < sizeof(bins->map) / 8; i++) {
        uint64_t word = i == first ? bins->map[i] & ~0ull << (bin % 64) : bins->map[i];
        if (word)
            return run_at(bins->head[i * 64 + (unsigned)__builtin_ctzll(word)]);
    }
    return NULL;
}

/* ---- Range and chunks ------------------------------------------------------------------------ */

static void init_once(void) {
    struct range range = {0};
    if (tcl_range_reserve(&range, 2 * UNIT, UNIT)) {
        tcl_heap_range = range;
        next_small = range.base;
        next_runs = range_runs();
    }
}

void tcl_heap_init(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_once);
}

bool tcl_os_bind(uintptr_t start, size_t bytes, int node) {
    unsigned long mask[16] = {0};
    if (node < 0 || (size_t)node >= sizeof(mask) * 8)
        return false;
    mask[node / 64] = 1ul << (node % 64);
    int saved = errno;
    /* 1: MPOL_PREFERRED, because a full node is no reason to fail. The kernel uses one bit less of
     * the mask than the count that it is passed. */
    bool is_bound = syscall(SYS_mbind, start, bytes, 1, mask, sizeof(mask) * 8 + 1, 0) == 0;
    errno = saved;
    return is_bound;
}

uint8_t tcl_arena_bind(unsigned k) {
    int node = tcl_arena_node(k);
    uint8_t reported = node >= 0 || node == TCL_NODE_MODELLED ? (uint8_t)k : TCL_ARENA_UNKNOWN;
    if (tcl_likely(node == __atomic_load_n(&arenas[k].node, __ATOMIC_RELAXED)))
        return reported;
    heap_lock(&tcl_heap_lock);
    if (arenas[k].node != node) {
        __atomic_store_n(&arenas[k].node, node, __ATOMIC_RELAXED);
        for (size_t unit = 0; node >= 0 && unit < UNITS_MAX; unit++)
            if (unit_arena[unit] == k + 1) {
                uintptr_t start = tcl_heap_range.base + (unit << UNIT_SHIFT);
                tcl_os_bind(start, UNIT, node);
            }
    }
    heap_unlock(&tcl_heap_lock);
    return reported;
}

/* Claims units [*next, *next + bytes) of the range for arena k, with their metadata. */
static uintptr_t claim_units(uintptr_t *next, uintptr_t limit, unsigned k, size_t bytes) {
    tcl_assert((bytes & (UNIT - 1)) == 0 && *next <= limit);
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock) && k < TCL_ARENAS_MAX);
    if (bytes > limit - *next)
        return 0;
    tcl_assert_debug(!unit_arena[(*next - tcl_heap_range.base) >> UNIT_SHIFT]);
    struct run *first = run_at(page_number(*next));
    void **slices = &tcl_heap_range.slices[(*next - tcl_heap_range.base) >> SLICE_SHIFT];
    if (mprotect(first, (bytes >> PAGE_SHIFT) * sizeof *first, PROT_READ | PROT_WRITE) != 0)
        return 0;
    if (next == &next_small &&
        mprotect(slices, (bytes >> SLICE_SHIFT) * sizeof *slices, PROT_READ | PROT_WRITE) != 0)
        return 0;
    for (size_t i = 0; i < bytes >> UNIT_SHIFT; i++)
        unit_arena[((*next - tcl_heap_range.base) >> UNIT_SHIFT) + i] = (uint8_t)(k + 1);
    uintptr_t start = *next;
    tcl_os_bind(start, bytes, arenas[k].node);
    if (tcl_unlikely(tcl_vmem_is_backing()))
        tcl_vmem_back(start, bytes);
    *next += bytes;
    return start;
}

/* Opens memory at the top of arena k's current chunk, or in a new chunk, for a clean run of `total`
 * OS pages aligned to `align`. */
static bool open_more(unsigned k, size_t total, size_t align) {
    struct chunk *chunk = arenas[k].chunk;
    size_t need = (total + align - 1) << PAGE_SHIFT;
    tcl_assert_debug(chunk->start <= chunk->opened && chunk->opened <= chunk->end);
    if (chunk->end - chunk->opened < need) {
        size_t bytes = (pages_open << PAGE_SHIFT) & ~(UNIT - 1);
        bytes = bytes > CHUNK_MAX ? CHUNK_MAX : bytes;
        bytes = bytes < need ? (need + UNIT - 1) & ~(UNIT - 1) : bytes;
        uintptr_t start = claim_units(&next_runs, range_end(), k, bytes);
        if (!start)
            return false;
        tcl_assert(chunk_count < sizeof(chunks) / sizeof(*chunks));
        chunk = arenas[k].chunk = &chunks[chunk_count++];
        *chunk = (struct chunk){start, start, start + bytes};
    }
    size_t step = (pages_open << PAGE_SHIFT) / 8;
    step = step < OPEN_MIN ? OPEN_MIN : step > OPEN_MAX ? OPEN_MAX : step & ~(OPEN_MIN - 1);
    step = step < need ? need : step;
    step = step > chunk->end - chunk->opened ? chunk->end - chunk->opened : step;
    if (mprotect((void *)chunk->opened, step, PROT_READ | PROT_WRITE) != 0) {
        step = need;
        if (mprotect((void *)chunk->opened, step, PROT_READ | PROT_WRITE) != 0)
            return false;
    }
    tcl_note_opened(chunk->opened, step);
    size_t number = page_number(chunk->opened);
    chunk->opened += step;
    __atomic_store_n(&pages_open, pages_open + (step >> PAGE_SHIFT), __ATOMIC_RELAXED);
    insert_free(number, step >> PAGE_SHIFT, RUN_CLEAN);
    return true;
}

void *tcl_small_chunk(unsigned k, size_t bytes, bool open) {
    tcl_heap_init();
    bytes = (bytes + UNIT - 1) & ~(UNIT - 1);
    heap_lock(&tcl_heap_lock);
    uintptr_t limit = tcl_heap_range.base + tcl_heap_range.small_bytes;
    uintptr_t start = claim_units(&next_small, limit, k, bytes);
    heap_unlock(&tcl_heap_lock);
    if (start && open && mprotect((void *)start, bytes, PROT_READ | PROT_WRITE) != 0)
        return NULL; /* the units stay claimed, which costs address space only */
    if (start && open)
        tcl_note_opened(start, bytes);
    return (void *)start;
}

void tcl_heap_shrink(size_t limit) {
    heap_lock(&tcl_heap_lock);
    if (tcl_heap_range.base)
        tcl_range_shrink(&tcl_heap_range, limit, UNIT, next_small, next_runs);
    heap_unlock(&tcl_heap_lock);
}

void tcl_heap_back(void) {
    heap_lock(&tcl_heap_lock);
    for (size_t i = 0; i < chunk_count; i++)
        tcl_vmem_back(chunks[i].start, chunks[i].end - chunks[i].start);
    for (uintptr_t at = tcl_heap_range.base; at < next_small; at += UNIT)
        tcl_vmem_back(at, UNIT);
    heap_unlock(&tcl_heap_lock);
}

size_t tcl_small_top(void) {
    return page_number(__atomic_load_n(&next_small, __ATOMIC_RELAXED));
}

/* ---- Taking and giving ----------------------------------------------------------------------- */

size_t tcl_pages_used(void) {
    return __atomic_load_n(&pages_used, __ATOMIC_RELAXED);
}

/* After any change of the counts. */
static void count_used(void) {
    tcl_assert_debug(pages_open >= pages_dirty + pages_clean + pages_reserved);
    size_t used = pages_open - pages_dirty - pages_clean - pages_reserved;
    __atomic_store_n(&pages_used, used, __ATOMIC_RELAXED);
}

static void set_reserved(struct run *run, size_t reserved) {
    pages_reserved += reserved - run->reserved;
    run->reserved = (uint32_t)reserved;
}

void tcl_pages_count_growth(struct run *run, size_t pages) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock) && is_used_run(run) && pages <= run->total);
    set_reserved(run, run->total - pages);
    count_used();
}

static size_t dirty_allowed(void) {
    size_t share = pages_used / DIRTY_SHARE;
    return share < DIRTY_MIN ? DIRTY_MIN : share;
}

static void mark_used(struct run *run, size_t total) {
    run->total = (uint32_t)total;
    run->state = RUN_CACHED;
    run->carve = tcl_next_carve();
    run->generation = 0;
    run->reserved = 0;
    if (total > 1)
        run_at(number_of(run) + total - 1)->state = RUN_NONE;
}

/* Cuts `total` OS pages aligned to `align` out of a free run that is unlinked. */
static struct run *cut(struct run *free, size_t total, size_t align) {
    enum run_state state = free->state;
    size_t number = number_of(free), have = free->total;
    size_t start = (page_address(number) >> PAGE_SHIFT) + align - 1;
    start = (start & ~(align - 1)) - (tcl_heap_range.base >> PAGE_SHIFT);
    size_t front = start - number;
    tcl_assert(total > 0 && front + total <= have);
    struct run *run = run_at(start);
    /* First, because otherwise its neighbours would join with it. */
    mark_used(run, total);
    run->touched = state == RUN_DIRTY ? (uint32_t)total : 0;
    if (front)
        insert_free(number, front, state);
    if (have > front + total)
        insert_free(start + total, have - front - total, state);
    return run;
}

/* A dirty run that is too small, joined with a clean run behind it: less fresh memory is touched.
 */
static struct run *take_joined(struct arena *arena, size_t total) {
    unsigned bin = bin_of(total);
    for (int word = (int)bin / 64, tries = 0; word >= 0 && tries < BIN_SEARCH; word--) {
        uint64_t map = arena->dirty.map[word];
        if (word == (int)bin / 64)
            map &= ~0ull >> (63 - bin % 64);
        for (; map && tries < BIN_SEARCH; tries++) {
            unsigned top = 63u - (unsigned)__builtin_clzll(map);
            map &= ~(1ull << top);
            struct run *run = run_at(arena->dirty.head[(unsigned)word * 64 + top]);
            size_t end = number_of(run) + run->total;
            if (run->total * 2 < total || page_address(end) >= next_runs)
                continue;
            struct run *after = run_at(end);
            if (after->state != RUN_CLEAN || run->total + after->total < total ||
                tcl_arena_of_page(end) != tcl_arena_of_page(end - 1))
                continue;
            unlink_free(run);
            unlink_free(after);
            size_t dirty = run->total, rest = run->total + after->total - total;
            mark_used(run, total);
            run->touched = (uint32_t)dirty;
            if (rest)
                insert_free(number_of(run) + total, rest, RUN_CLEAN);
            return run;
        }
    }
    return NULL;
}

static bool has_runs(const struct bins *bins) {
    return (bins->map[0] | bins->map[1] | bins->map[2] | bins->map[3]) != 0;
}

/* For objects that will grow into it. */
static struct run *find_biggest(const struct bins *bins) {
    for (int word = (BINS - 1) / 64; word >= 0; word--)
        if (bins->map[word])
            return run_at(
                bins->head[(unsigned)word * 64 + 63u - (unsigned)__builtin_clzll(bins->map[word])]);
    return NULL;
}

struct run *tcl_pages_take_biggest(unsigned k, size_t pages) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock));
    struct run *biggest = find_biggest(&arenas[k].dirty);
    if (!biggest || biggest->total < pages)
        return NULL;
    unlink_free(biggest);
    struct run *run = cut(biggest, pages, 1);
    count_used();
    return run;
}

struct run *tcl_pages_take_growing(unsigned k, size_t pages, size_t most) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock) && pages <= most);
    struct run *biggest = find_biggest(&arenas[k].dirty);
    if (biggest && biggest->total >= pages * 2) {
        size_t total = biggest->total < pages * 4 ? biggest->total : pages * 4;
        unlink_free(biggest);
        struct run *run = cut(biggest, total < most ? total : most, 1);
        count_used();
        return run;
    }
    struct run *run = tcl_pages_take(k, most, 1, TAKE_CLEAN);
    if (!run)
        return tcl_pages_take(k, pages, 1, TAKE_ANY);
    tcl_pages_count_growth(run, pages);
    return run;
}

struct run *tcl_pages_take(unsigned k, size_t total, size_t align, enum take take) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock));
    tcl_assert_debug(k < TCL_ARENAS_MAX && total > 0 && align > 0 && !(align & (align - 1)));
    struct arena *arena = &arenas[k];
    struct run *free = NULL;
    if (take != TAKE_CLEAN && has_runs(&arena->dirty)) {
        free = find_free(&arena->dirty, total + align - 1);
        if (!free && align == 1 && total > 16) { /* chosen: smaller runs are not worth a search */
            struct run *run = take_joined(arena, total);
            if (run) {
                count_used();
                return run;
            }
        }
    }
    if (!free && take == TAKE_DIRTY)
        return NULL;
    /* Only untouched memory can become a huge OS page, which needs the alignment. */
    if (!free && align == 1 && total >= HUGE_PAGES)
        align = HUGE_PAGES;
    if (!free)
        free = find_free(&arena->clean, total + align - 1);
    if (!free) {
        if (!tcl_heap_range.base || !open_more(k, total, align))
            return NULL;
        free = find_free(&arena->clean, total + align - 1);
    }
    if (!free)
        return NULL;
    unlink_free(free);
    struct run *run = cut(free, total, align);
    count_used();
    return run;
}

/* What is dead, for the daemon. */
static void report_idle(void) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock));
    for (unsigned k = 0; k < TCL_ARENAS_MAX; k++)
        tcl_note_idle(k, arenas[k].dirty_pages << PAGE_SHIFT);
}

static void schedule_purge(void) {
    static unsigned calls, unreported;
    if (++unreported % 16 == 0)
        report_idle();
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock) && pages_dirty_low <= pages_dirty);
    count_used();
    if (pages_dirty > dirty_allowed() && ++calls % 16 == 0 && now_ms() >= window_end_ms)
        tcl_purge_due = true;
}

#if TCL_ASSERT_LEVEL >= 2
/* Checks the whole heap, under the lock: runs fill every chunk without a gap, free neighbours of a
 * kind are joined, and the counts agree with the runs. */
static void check_heap(void) {
    size_t number = 0, dirty = 0, clean = 0;
    for (size_t i = 0; i < chunk_count; i++) {
        size_t start = page_number(chunks[i].start), end = page_number(chunks[i].opened);
        enum run_state before = RUN_NONE;
        /* A free run may reach over from the chunk before. */
        for (number = number < start ? start : number; number < end;) {
            const struct run *run = run_at(number);
            tcl_assert(run->total > 0 && run->state != RUN_NONE && run->state != RUN_BLOCK);
            if (run->state == RUN_CLEAN || run->state == RUN_DIRTY) {
                tcl_assert(is_free_run(run) && run->state != before);
                *(run->state == RUN_DIRTY ? &dirty : &clean) += run->total;
            }
            before = run->state;
            number += run->total;
        }
    }
    tcl_assert(dirty == pages_dirty && clean == pages_clean);
    for (unsigned k = 0; k < TCL_ARENAS_MAX; k++)
        dirty -= arenas[k].dirty_pages;
    tcl_assert(dirty == 0);
}
#endif

static void check_sometimes(void) {
#if TCL_ASSERT_LEVEL >= 2
    enum { CALLS = 512 }; /* chosen, not measured: a check walks the whole heap */
    static unsigned calls;
    if (++calls % CALLS == 0)
        check_heap();
#endif
}

void tcl_pages_give(struct run *run) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock));
    tcl_assert_debug(is_used_run(run));
    size_t number = number_of(run), total = run->total, dirty = run->touched;
    set_reserved(run, 0);
    if (dirty < total) {
        fence(run, number + dirty);
        insert_free(number + dirty, total - dirty, RUN_CLEAN);
    }
    if (dirty)
        insert_free(number, dirty, RUN_DIRTY);
    schedule_purge();
    check_sometimes();
}

/* Free runs that follow OS page `end` of arena k: a dirty one, then a clean one; NULL: none. */
struct behind {
    struct run *dirty, *clean;
    size_t dirty_pages, pages; /* of the dirty one, and of both */
};

static struct run *free_at(size_t number, unsigned k, enum run_state state) {
    if (page_address(number) >= next_runs || tcl_arena_of_page(number) != k)
        return NULL;
    struct run *run = run_at(number);
    return run->state == state ? run : NULL;
}

static struct behind look_behind(size_t end, unsigned k) {
    struct behind behind = {.dirty = free_at(end, k, RUN_DIRTY)};
    behind.dirty_pages = behind.dirty ? behind.dirty->total : 0;
    behind.clean = free_at(end + behind.dirty_pages, k, RUN_CLEAN);
    behind.pages = behind.dirty_pages + (behind.clean ? behind.clean->total : 0);
    return behind;
}

/* Extends a run by what is behind it to at least `least` OS pages, with dirty memory, of which
 * nothing is reserved, or also with clean memory, to at most `most`. */
static void extend(struct run *run, const struct behind *behind, size_t least, size_t most) {
    size_t number = number_of(run), dirty_end = run->total + behind->dirty_pages;
    size_t have = run->total + behind->pages, total = have < most ? have : most;
    bool is_clean_used = least > dirty_end;
    if (!is_clean_used)
        total = least;
    if (behind->dirty)
        unlink_free(behind->dirty);
    if (is_clean_used)
        unlink_free(behind->clean);
    if (behind->dirty) /* a prefix, so a clean part before it counts too */
        run->touched = (uint32_t)(dirty_end < total ? dirty_end : total);
    run->total = (uint32_t)total;
    run->carve = tcl_next_carve();
    run->generation = 0;
    run_at(number + total - 1)->state = RUN_NONE;
    if (is_clean_used && have > total)
        insert_free(number + total, have - total, RUN_CLEAN);
    if (!is_clean_used && dirty_end > total)
        insert_free(number + total, dirty_end - total, RUN_DIRTY);
    tcl_pages_count_growth(run, is_clean_used ? least : total);
}

bool tcl_pages_extend(struct run *run, size_t least, size_t most) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock));
    tcl_assert_debug(is_used_run(run) && run->total < least && least <= most);
    size_t end = number_of(run) + run->total;
    unsigned k = tcl_arena_of_page(number_of(run));
    for (int attempt = 0; attempt < 2; attempt++) {
        struct behind behind = look_behind(end, k);
        size_t have = run->total + behind.pages;
        if (have >= least) {
            extend(run, &behind, least, most);
            return true;
        }
        /* At the top of the chunk there may be memory that is not open yet. */
        struct chunk *chunk = arenas[k].chunk;
        if (page_address(end + behind.pages) != chunk->opened ||
            (least - have) << PAGE_SHIFT > chunk->end - chunk->opened ||
            !open_more(k, least - have, 1))
            break;
    }
    return false;
}

void tcl_pages_trim(struct run *run, size_t total) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock));
    tcl_assert_debug(is_used_run(run) && total > 0 && total <= run->total);
    size_t number = number_of(run), old = run->total;
    size_t dirty = run->touched < total ? total : run->touched;
    set_reserved(run, 0);
    run->total = (uint32_t)total;
    run->carve = tcl_next_carve();
    run->generation = 0;
    if (run->touched > total)
        run->touched = (uint32_t)total;
    if (total > 1)
        run_at(number + total - 1)->state = RUN_NONE;
    if (dirty < old) {
        fence(run, number + dirty);
        insert_free(number + dirty, old - dirty, RUN_CLEAN);
    }
    if (dirty > total)
        insert_free(number + total, dirty - total, RUN_DIRTY);
    schedule_purge();
}

/* ---- Purge ----------------------------------------------------------------------------------- */

/* Unlinks the biggest dirty run of the arenas from `first` up to `end` as RUN_PURGING. */
static struct run *pick_dirty(unsigned first, unsigned end) {
    struct run *best = NULL, *run;
    for (unsigned k = first; k < end; k++)
        if ((run = find_biggest(&arenas[k].dirty)) && (!best || run->total > best->total))
            best = run;
    if (best) {
        unlink_free(best);
        best->state = RUN_PURGING;
        if (best->total > 1)
            run_at(number_of(best) + best->total - 1)->state = RUN_NONE;
    }
    return best;
}

/* Purges dirty runs of those arenas, the biggest first, until it is `pages` OS pages or more. Under
 * the lock, which it releases meanwhile. */
static void purge_dirty(unsigned first, unsigned end, size_t pages, int rounds) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock));
    for (bool failed = false; pages > 0 && rounds > 0 && !failed; rounds--) {
        struct run *batch[PURGE_BATCH];
        int count = 0;
        while (count < PURGE_BATCH && pages > 0 &&
               (batch[count] = pick_dirty(first, end)) != NULL) {
            size_t total = batch[count++]->total;
            pages -= total < pages ? total : pages;
        }
        if (count == 0)
            return;
        heap_unlock(&tcl_heap_lock);
        bool clean[PURGE_BATCH];
        for (int i = 0; i < count; i++)
            clean[i] = tcl_os_clear(page_address(number_of(batch[i])),
                                    (size_t)batch[i]->total << PAGE_SHIFT) == 0;
        heap_lock(&tcl_heap_lock);
        for (int i = 0; i < count; i++) {
            tcl_assert(batch[i]->state == RUN_PURGING); /* no other thread may take it */
            insert_free(number_of(batch[i]), batch[i]->total, clean[i] ? RUN_CLEAN : RUN_DIRTY);
            failed |= !clean[i]; /* memory that is locked stays dirty */
        }
    }
}

void tcl_pages_purge(bool all) {
    int saved = errno;
    tcl_purge_due = false;
    heap_lock(&tcl_heap_lock);
    size_t idle = all ? pages_dirty : pages_dirty_low, keep = pages_dirty - idle;
    if (!all && keep < dirty_allowed())
        keep = dirty_allowed();
    if (pages_dirty > keep)
        purge_dirty(0, TCL_ARENAS_MAX, pages_dirty - keep, all ? INT_MAX : PURGE_ROUNDS);
    pages_dirty_low = pages_dirty;
    window_end_ms = now_ms() + PURGE_WINDOW_MS;
    report_idle();
    heap_unlock(&tcl_heap_lock);
    errno = saved;
}

/* Of `pages`, what may be purged in exchange now. */
static size_t exchange_within_rate(size_t pages) {
    uint64_t now = now_ms(), earned = (now - exchange_ms) * EXCHANGE_RATE;
    exchange_ms = now;
    exchange_left =
        earned < EXCHANGE_BURST - exchange_left ? exchange_left + earned : EXCHANGE_BURST;
    pages = pages < exchange_left ? pages : exchange_left;
    exchange_left -= pages;
    return pages;
}

/* While there is more dirty memory than allowed: purges as much as is about to be touched. */
static void exchange(size_t fresh) {
    size_t allowed = dirty_allowed();
    pages_fresh = pages_dirty > allowed ? pages_fresh + fresh : 0;
    if (pages_fresh < EXCHANGE_MIN)
        return;
    size_t excess = pages_dirty - allowed, pages = pages_fresh < excess ? pages_fresh : excess;
    pages_fresh = 0;
    purge_dirty(0, TCL_ARENAS_MAX, exchange_within_rate(pages), PURGE_ROUNDS);
}

void tcl_pages_purge_for(unsigned k, const struct run *run) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock) && is_used_run(run));
    size_t fresh = run->total - run->reserved - run->touched;
    int saved = errno;
    if (fresh >= PURGE_FOR_MIN && arenas[k].node >= 0 && has_runs(&arenas[k].dirty))
        purge_dirty(k, k + 1, fresh, PURGE_ROUNDS);
    else
        exchange(fresh);
    errno = saved;
}

void tcl_pages_exchange(size_t fresh) {
    if (tcl_likely(__atomic_load_n(&pages_dirty, __ATOMIC_RELAXED) <= DIRTY_MIN))
        return;
    heap_lock(&tcl_heap_lock);
    exchange(fresh);
    heap_unlock(&tcl_heap_lock);
}

void tcl_pages_each(void (*visit)(struct run *, void *), void *context) {
    tcl_assert_debug(tcl_is_held(&tcl_heap_lock));
    size_t number = 0;
    for (size_t i = 0; i < chunk_count; i++) {
        size_t start = page_number(chunks[i].start), end = page_number(chunks[i].opened);
        /* A free run may reach over from the chunk before. */
        for (number = number < start ? start : number; number < end;
             number += run_at(number)->total)
            visit(run_at(number), context);
    }
}

void tcl_heap_each_opened(void (*visit)(uintptr_t start, size_t bytes)) {
    heap_lock(&tcl_heap_lock);
    for (size_t i = 0; i < chunk_count; i++)
        visit(chunks[i].start, chunks[i].opened - chunks[i].start);
    heap_unlock(&tcl_heap_lock);
    visit(tcl_heap_range.base, tcl_small_top() << PAGE_SHIFT);
}

size_t tcl_heap_open_bytes(void) {
    return __atomic_load_n(&pages_open, __ATOMIC_RELAXED) << PAGE_SHIFT;
}

static void count_run(struct run *run, void *context) {
    struct heap_figures *figures = context;
    uint8_t state = atomic_load_explicit(&run->state, memory_order_relaxed);
    if (state == RUN_LIVE) {
        figures->live += run->pages;
        figures->objects++;
    } else {
        figures->free_runs++;
    }
}

struct heap_figures tcl_heap_figures(void) {
    heap_lock(&tcl_heap_lock);
    struct heap_figures figures = {.open = pages_open, .dirty = pages_dirty, .clean = pages_clean};
    tcl_pages_each(count_run, &figures);
    heap_unlock(&tcl_heap_lock);
    return figures;
}
