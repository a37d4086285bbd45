/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * ring.c: writes records into the calling thread's ring, and keeps the object table up to date.
 * In: notes of the allocator and of map.c. Out: records; table entries; counts of what was lost.
 * Knows nothing of their reader. The protocol is crates/wire/src/ring.rs, which loom has checked.
 *
 *   writer (thread) head, limit: the record at `head` may be written while head < limit
 *   limit        = min(tail seen + RECORDS, records whose memory was provided)
 *
 * so that the fast path is: epoch equal? head below limit? the time, four stores, one release.
 */
#include "clock.h"
#include "session.h"
#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Records whose memory is populated at a time: 1024 * 32 bytes = 32 KiB. Chosen, not measured: a
 * thread that allocates seldom then has 9 OS pages of its ring's 33. */
#define PROVIDE_RECORDS 1024u
/* log2 of the OS pages of the range whose table entries are populated at a time: 2^12 * 4 KiB = 16
 * MiB of heap, 2^12 * 16 bytes = 64 KiB of table. Chosen, not measured. */
#define PROVIDE_SHIFT 12
/* A reader that took nothing for so long is gone. Chosen, not measured: the daemon drains rings
 * many times a second. */
#define READER_GONE_MS 1000
/* Losses between two looks at the clock. Chosen, not measured: a clock read costs several times
 * what the loss of a record does. */
#define LOSSES_PER_CHECK 64
/* Keys below this live in the thread descriptor, so that pthread_setspecific does not allocate:
 * PTHREAD_KEY_2NDLEVEL_SIZE of glibc's nptl/descr.h. */
#define INLINE_KEYS 32
/* Of a ring's records, one in so many is kept for objects. Chosen, not measured. */
#define MISSES_RESERVE 4
/* In place of a time since when a ring is full: its thread's stack is not reported yet. */
#define STACK_UNREPORTED UINT64_MAX
/* Rounds of key destructors that a thread's ring outlives, so that frees in the destructors of
 * other keys are still recorded: PTHREAD_DESTRUCTOR_ITERATIONS (4, bits/local_lim.h) less one. */
#ifndef EXIT_ROUNDS
#define EXIT_ROUNDS 3
#endif

enum writer_state { WRITER_NEW = 0, WRITER_READY, WRITER_RETIRED };

struct ring_writer {
    uint32_t epoch;
    uint8_t state;            /* enum writer_state */
    volatile uint8_t is_busy; /* a signal handler's note must not land inside ours */
    uint8_t exit_rounds;
    struct tcl_ring *ring;
    uint64_t head, limit, lost;
    uint64_t full_since_ms;
    uint32_t index;
};
static _Thread_local struct ring_writer writer = {.epoch = UINT32_MAX};

/* Private copies of the shared counters follow, which are never read back: the daemon may
 * overwrite them. */

/* Epoch of the owner; another epoch, or 0: free. */
static _Atomic uint32_t ring_owner[TCL_RINGS_MAX];
static struct { /* where the last owner stopped, in that epoch */
    _Atomic uint32_t epoch;
    _Atomic uint64_t head, lost;
} ring_saved[TCL_RINGS_MAX];
/* Epoch in which the object table had memory for these OS pages. */
static _Atomic uint32_t runs_provided[TCL_RANGE_PAGES_MAX >> PROVIDE_SHIFT];
static uintptr_t range_base;
static size_t range_pages;
static pthread_key_t exit_key;
static bool has_exit_key;
static _Atomic uint32_t carves;

static void thread_exits(void *unused);

void tcl_ring_start(void) {
    tcl_range(&range_base, &range_pages);
    has_exit_key = !tcl_key_create(&exit_key, thread_exits) && exit_key < INLINE_KEYS;
}

uint32_t tcl_next_carve(void) {
    return atomic_fetch_add_explicit(&carves, 1, memory_order_relaxed) + 1;
}

/* ---- Rings ----------------------------------------------------------------------------------- */

static void count_lost(void) {
    __atomic_fetch_add(&tcl_header()->lost_without_ring, 1, __ATOMIC_RELAXED);
}

static void raise_high_water(uint32_t *word, uint32_t to) {
    uint32_t now = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (now < to &&
           !__atomic_compare_exchange_n(word, &now, to, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
}

/* The lowest free ring, so that the daemon has few to scan; -1 when all are taken. */
static int acquire_ring(uint32_t epoch) {
    for (int i = 0; i < (int)TCL_RINGS_MAX; i++) {
        uint32_t owner = atomic_load_explicit(&ring_owner[i], memory_order_relaxed);
        if (owner != epoch && atomic_compare_exchange_strong(&ring_owner[i], &owner, epoch))
            return i;
    }
    return -1;
}

/* Gives the calling thread a ring of the session with this epoch. */
static bool claim_ring(struct ring_writer *mine, uint32_t epoch) {
    if (mine->state == WRITER_RETIRED)
        return false;
    int index = acquire_ring(epoch);
    if (index < 0)
        return false;
    struct tcl_ring *ring = &tcl_rings()[index];
    if (!tcl_provide(ring, sizeof(struct tcl_ring) - sizeof(ring->records)))
        return false;
    *mine = (struct ring_writer){.epoch = epoch,
                                 .state = WRITER_READY,
                                 .ring = ring,
                                 .is_busy = 1,
                                 .exit_rounds = mine->exit_rounds,
                                 .full_since_ms = STACK_UNREPORTED,
                                 .index = (uint32_t)index};
    if (atomic_load_explicit(&ring_saved[index].epoch, memory_order_relaxed) == epoch) {
        mine->head = atomic_load_explicit(&ring_saved[index].head, memory_order_relaxed);
        mine->lost = atomic_load_explicit(&ring_saved[index].lost, memory_order_relaxed);
    }
    mine->limit = mine->head; /* extend_limit raises it */
    __atomic_store_n(&ring->tid, (uint32_t)syscall(SYS_gettid), __ATOMIC_RELAXED);
    __atomic_store_n(&ring->state, TCL_RING_OWNED, __ATOMIC_RELAXED);
    raise_high_water(&tcl_header()->ring_high_water, (uint32_t)index + 1);
    if (has_exit_key)
        pthread_setspecific(exit_key, mine);
    return true;
}

static void thread_exits(void *unused) {
    (void)unused;
    struct ring_writer *mine = &writer;
    if (mine->exit_rounds < EXIT_ROUNDS) {
        mine->exit_rounds++;
        pthread_setspecific(exit_key, mine);
        return;
    }
    tcl_probe_thread_ends();
    uint32_t epoch = mine->epoch, index = mine->index;
    tcl_image_thread_gone();
    bool held = mine->state == WRITER_READY && atomic_load(&ring_owner[index]) == epoch;
    mine->state = WRITER_RETIRED;
    mine->epoch = UINT32_MAX;
    if (!held || epoch != atomic_load(&tcl_process->epoch))
        return;
    atomic_store_explicit(&ring_saved[index].head, mine->head, memory_order_relaxed);
    atomic_store_explicit(&ring_saved[index].lost, mine->lost, memory_order_relaxed);
    atomic_store_explicit(&ring_saved[index].epoch, epoch, memory_order_relaxed);
    __atomic_store_n(&mine->ring->state, TCL_RING_FREE, __ATOMIC_RELAXED);
    /* Fails if the session has changed meanwhile: the ring then has a new owner. */
    atomic_compare_exchange_strong(&ring_owner[index], &epoch, 0);
}

static void note_full(struct ring_writer *mine) {
    mine->lost++;
    __atomic_store_n(&mine->ring->lost, mine->lost, __ATOMIC_RELAXED);
    if (mine->lost % LOSSES_PER_CHECK != 1)
        return;
    if (__atomic_load_n(&tcl_control()->detach, __ATOMIC_RELAXED)) {
        tcl_session_asked_to_detach();
        return;
    }
    uint64_t now = tcl_now_ms();
    if (!mine->full_since_ms || mine->full_since_ms == STACK_UNREPORTED)
        mine->full_since_ms = now;
}

/* Raises the limit to where the thread may write; false when the record is lost. */
static bool extend_limit(struct ring_writer *mine) {
    tcl_assert_debug(mine->is_busy && mine->index < TCL_RINGS_MAX);
    struct tcl_ring *ring = mine->ring;
    uint64_t used = mine->head - __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
    if (used >= TCL_RING_RECORDS) {
        note_full(mine);
        return false;
    }
    if (mine->full_since_ms != STACK_UNREPORTED)
        mine->full_since_ms = 0;
    uint64_t room = TCL_RING_RECORDS - used, slot = mine->head % TCL_RING_RECORDS;
    uint64_t step = PROVIDE_RECORDS - slot % PROVIDE_RECORDS;
    /* Slots that were never written have no memory yet. */
    if (mine->head < TCL_RING_RECORDS) {
        if (!tcl_provide(&ring->records[slot], step * sizeof(struct tcl_record)))
            return false;
        mine->limit = mine->head + (room < step ? room : step);
    } else {
        mine->limit = mine->head + room;
    }
    return true;
}

/* The thread's writer, ready for one record, or NULL. Sets is_busy; the caller clears it. */
static inline struct ring_writer *take_writer(void) {
    struct ring_writer *mine = &writer;
    uint32_t epoch = atomic_load_explicit(&tcl_process->epoch, memory_order_acquire);
    if (tcl_unlikely(!epoch))
        return NULL;
    if (tcl_unlikely(mine->is_busy)) {
        count_lost();
        return NULL;
    }
    mine->is_busy = 1;
    atomic_signal_fence(memory_order_seq_cst);
    if (tcl_unlikely(mine->epoch != epoch) && !claim_ring(mine, epoch)) {
        mine->is_busy = 0;
        if (tcl_attached())
            count_lost();
        return NULL;
    }
    if (tcl_unlikely(mine->head >= mine->limit) && !extend_limit(mine)) {
        mine->is_busy = 0;
        return NULL;
    }
    return mine;
}

_Static_assert(offsetof(struct tcl_record, size) == 8 && offsetof(struct tcl_record, site) == 16 &&
                   offsetof(struct tcl_record, time_high) == 18 &&
                   offsetof(struct tcl_record, carve) == 20 &&
                   offsetof(struct tcl_record, time_low) == 24 &&
                   offsetof(struct tcl_record, generation) == 28 &&
                   offsetof(struct tcl_record, kind) == 30 &&
                   offsetof(struct tcl_record, flags_low) == 31,
               "write_record packs these");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "write_record packs little endian");

/* Writes the two words of a use, and the time. */
static inline void write_slot(struct ring_writer *mine, const struct tcl_use *use, uint64_t size,
                              uint8_t kind, struct tcl_instant now) {
    tcl_assert_debug(mine->is_busy && mine->head < mine->limit);
    uint64_t *slot = (uint64_t *)&mine->ring->records[mine->head % TCL_RING_RECORDS];
    /* Whole words: little endian, as the assertions above have it. */
    __atomic_store_n(&slot[0], use->addr, __ATOMIC_RELAXED);
    __atomic_store_n(&slot[1], size, __ATOMIC_RELAXED);
    __atomic_store_n(&slot[2],
                     (uint16_t)use->site | (now.time >> 32 & 0xffff) << 16 |
                         (uint64_t)use->carve << 32,
                     __ATOMIC_RELAXED);
    __atomic_store_n(&slot[3],
                     (uint32_t)now.time | (uint64_t)use->generation << 32 | (uint64_t)kind << 48 |
                         (uint64_t)(use->flags | now.flag) << 56,
                     __ATOMIC_RELAXED);
    mine->head++;
    __atomic_store_n(&mine->ring->head, mine->head, __ATOMIC_RELEASE);
    atomic_signal_fence(memory_order_seq_cst);
    mine->is_busy = 0;
}

static inline void write_record(const struct tcl_use *use, uint64_t size, uint8_t kind) {
    struct ring_writer *mine = take_writer();
    if (mine)
        write_slot(mine, use, size, kind, tcl_clock_read(&tcl_control()->clock));
}

/* ---- Misses ---------------------------------------------------------------------------------- */

bool tcl_ring_attend(void) {
    struct ring_writer *mine = take_writer();
    if (mine)
        mine->is_busy = 0;
    return mine && has_exit_key;
}

/* Counts are scaled up; what has no room in 32 bits is as many as fit. */
static uint64_t scaled(uint32_t count) {
    uint64_t all = (uint64_t)count << tcl_probe_shift();
    return all < UINT32_MAX ? all : UINT32_MAX;
}

/* An object's record that is lost costs a scan of all objects; a miss can wait. */
static bool has_room_for_misses(const struct ring_writer *mine) {
    uint64_t used = mine->head - __atomic_load_n(&mine->ring->tail, __ATOMIC_RELAXED);
    return used < TCL_RING_RECORDS - TCL_RING_RECORDS / MISSES_RESERVE;
}

bool tcl_note_misses(const struct tcl_misses *misses) {
    struct ring_writer *mine = take_writer();
    if (!mine)
        return false;
    if (!has_room_for_misses(mine)) {
        mine->is_busy = 0;
        return false;
    }
    struct tcl_use use = {.addr = misses->page,
                          .carve = (uint32_t)scaled(misses->dirtied),
                          .site = misses->site,
                          .generation = (uint16_t)misses->pattern};
    struct tcl_instant time = {misses->time, (uint8_t)(misses->time >> 56)};
    write_slot(mine, &use, scaled(misses->reads) | scaled(misses->writes) << 32, TCL_MISSES, time);
    return true;
}

void tcl_lose_misses(uint32_t count) {
    if (tcl_attached())
        __atomic_fetch_add(&tcl_header()->lost_misses, scaled(count), __ATOMIC_RELAXED);
}

/* ---- The object table ------------------------------------------------------------------------ */

/* Entry of an address in the range, its memory provided; NULL outside the range. */
static inline struct tcl_run *run_entry(uintptr_t addr) {
    size_t page = (addr - range_base) / TCL_PAGE;
    if (tcl_unlikely(page >= range_pages))
        return NULL;
    _Atomic uint32_t *provided = &runs_provided[page >> PROVIDE_SHIFT];
    uint32_t epoch = atomic_load_explicit(&tcl_process->epoch, memory_order_acquire);
    if (tcl_unlikely(!epoch))
        return NULL;
    if (tcl_unlikely(atomic_load_explicit(provided, memory_order_acquire) != epoch)) {
        size_t first = page & -((size_t)1 << PROVIDE_SHIFT);
        size_t count = (size_t)1 << PROVIDE_SHIFT;
        if (count > range_pages - first)
            count = range_pages - first;
        if (!tcl_provide(&tcl_runs()[first], count * sizeof(struct tcl_run)))
            return NULL;
        atomic_store_explicit(provided, epoch, memory_order_release);
        uint64_t *water = &tcl_header()->run_high_water, now = __atomic_load_n(water, 0);
        while (now < first + count &&
               !__atomic_compare_exchange_n(water, &now, first + count, true, __ATOMIC_RELEASE,
                                            __ATOMIC_RELAXED))
            ;
    }
    return &tcl_runs()[page];
}

static inline void enter(const struct tcl_use *use) {
    tcl_assert_debug(use->bytes > 0 && use->bytes % TCL_PAGE == 0 && use->addr % TCL_PAGE == 0);
    struct tcl_run *run = run_entry(use->addr);
    if (!run)
        return;
    uint64_t identity = (uint64_t)use->site << 32 | (uint64_t)use->generation << 16 |
                        (uint64_t)use->arena << 8 | use->flags;
    uint64_t shape = (uint64_t)(use->bytes / TCL_PAGE) << 32 | use->carve;
    __atomic_store_n(&run->shape, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&run->identity, identity, __ATOMIC_RELEASE);
    __atomic_store_n(&run->shape, shape, __ATOMIC_RELEASE);
}

static inline void leave(const struct tcl_use *use) {
    struct tcl_run *run = run_entry(use->addr);
    if (run)
        __atomic_store_n(&run->shape, 0, __ATOMIC_RELEASE);
}

static inline uint64_t size_and_arena(const struct tcl_use *use) {
    return use->bytes | (uint64_t)use->arena << TCL_SIZE_BITS;
}

void tcl_note_born(const struct tcl_use *use) {
    if (tcl_unlikely(!tcl_attached()))
        return;
    enter(use);
    write_record(use, size_and_arena(use), TCL_BORN);
}

void tcl_note_died(const struct tcl_use *use) {
    if (tcl_unlikely(!tcl_attached()))
        return;
    leave(use);
    tcl_probe_died(use->addr, use->bytes);
    write_record(use, size_and_arena(use), TCL_DIED);
    if (!(use->flags & TCL_BLOCK))
        tcl_birth_refund(use->arena, use->bytes);
}

void tcl_note_resized(const struct tcl_use *use) {
    if (tcl_unlikely(!tcl_attached()))
        return;
    enter(use);
    write_record(use, size_and_arena(use), TCL_RESIZED);
}

void tcl_note_idle(unsigned arena, size_t bytes) {
    tcl_assert_debug(arena < TCL_ARENAS_MAX);
    if (tcl_unlikely(tcl_attached()))
        __atomic_store_n(&tcl_header()->idle_bytes[arena], bytes, __ATOMIC_RELAXED);
}

void tcl_note_cut(uintptr_t addr, size_t bytes, uint32_t carve) {
    struct tcl_use use = {.addr = addr, .bytes = bytes, .carve = carve, .flags = TCL_MAPPED};
    tcl_probe_died(addr, bytes);
    write_record(&use, bytes, TCL_CUT);
}

void tcl_note_share(const struct tcl_use *use, uint64_t share) {
    if (tcl_attached())
        write_record(use, share | (uint64_t)TCL_ARENA_UNKNOWN << TCL_SIZE_BITS, TCL_SHARE);
}

void tcl_note_head(const struct tcl_use *use, struct tcl_head head) {
    tcl_assert_debug(head.arena < TCL_ARENAS_MAX && head.bytes <= use->bytes);
    if (head.bytes && tcl_attached())
        write_record(use, head.bytes | (uint64_t)head.arena << TCL_SIZE_BITS, TCL_HEAD);
}

void tcl_note_phase(uint32_t number) {
    struct tcl_use use = {.addr = number};
    tcl_probe_phase();
    write_record(&use, 0, TCL_PHASE);
}

static void enter_missing(const struct tcl_use *use, void *context) {
    (void)context;
    /* An entry that another thread made meanwhile is newer than this walk. */
    struct tcl_run *run = run_entry(use->addr);
    if (run && !__atomic_load_n(&run->shape, __ATOMIC_ACQUIRE))
        enter(use);
}

bool tcl_ring_fill(void) {
    tcl_heap_each(enter_missing, NULL);
    return tcl_attached();
}

static void report_stack(struct ring_writer *mine) {
    if (mine->full_since_ms != STACK_UNREPORTED)
        return;
    mine->full_since_ms = 0;
    tcl_image_thread();
}

void tcl_ring_check(void) {
    struct ring_writer *mine = &writer;
    if (tcl_unlikely(__atomic_load_n(&tcl_control()->detach, __ATOMIC_RELAXED))) {
        tcl_session_asked_to_detach();
    } else if (tcl_unlikely(atomic_load_explicit(&tcl_process->is_awaited, memory_order_relaxed))) {
        report_stack(mine);
        tcl_session_await_answer();
    } else if (tcl_unlikely(mine->full_since_ms != 0)) {
        report_stack(mine);
        if (mine->full_since_ms && tcl_now_ms() - mine->full_since_ms > READER_GONE_MS) {
            mine->full_since_ms = 0;
            tcl_session_reattach();
        }
    }
}
