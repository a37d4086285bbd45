/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * handles.c: small objects that may move while the program runs, behind handles.
 * In: calls of tiercel.h. Out: objects among the hot or among the cold ones, by how often they are
 * pinned. Knows nothing of nodes: temperatures have arenas.
 *
 *   handle --> entry { word, uses, bytes, temperature, idle }
 *   word       | moving : 1 | pins : 15 | address : 48 |
 *
 *   pin     word += 1 pin, and not moving: it never waits, and ends a move that is under way
 *   move    word |= moving, where there is no pin; copy; word = new address, if it is still moving
 *
 * A pin that comes while an object is copied makes the last step fail: the copy is dropped, and the
 * object stays what it was. One thread moves at a time, under move_lock, so that `moving` is its
 * own. Freeing waits until its object is not copied.
 *
 * Nothing has a thread of its own: of STEP_PINS pins that a thread makes, the last looks at
 * STEP_ENTRIES entries behind the hand, as CLOCK does (Corbato 1968). An object that was pinned
 * often since the hand was last there goes among the hot ones, if these have room in the fastest
 * memory; one that was not pinned at all in IDLE_ROUNDS rounds goes among the cold ones.
 *
 * A forked child has the table as it is. What was being copied stays where it was.
 */
#define TIERCEL_RUNTIME
#include "../../include/tiercel.h"
#include "../alloc/heap.h"
#include "../track/session.h"
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#define ADDRESS_BITS 48u /* x86-64 and AArch64 give programs no more unless they ask */
#define ADDRESS ((1ull << ADDRESS_BITS) - 1) /* its bits */
#define ONE_PIN (1ull << ADDRESS_BITS)       /* the bit above */
#define PINS_MAX ((1u << 15) - 1)            /* of 64 - 48 - 1 bits */
#define MOVING (1ull << 63)                  /* the highest bit */

/* Chosen, not measured: a sixteenth of an entry a pin, and a turn of the hand over 100,000 objects
 * in 1.6 million pins. */
#define STEP_PINS 1024u
#define STEP_ENTRIES 64u
/* Pins between two looks from which an object is hot, and looks without any after which it is cold.
 * Chosen, not measured: what is pinned once in a round is neither. */
#define HOT_USES 4u
#define IDLE_ROUNDS 2u

/* 64 KiB of entries; 2^12 * 2^12 handles. Chosen, not measured. */
#define CHUNK_ENTRIES 4096u
#define CHUNKS_MAX 4096u

struct tiercel_handle {
    _Atomic uint64_t word;            /* 0: free */
    _Atomic uint32_t uses;            /* pins since the hand was here; some are lost */
    uint16_t bytes;                   /* 0: it is not small, and does not move */
    uint8_t temperature, idle_rounds; /* under move_lock */
    struct tiercel_handle *next;      /* of the free ones, under list_lock */
};
_Static_assert(sizeof(struct tiercel_handle) == 24, "three words");

static struct tiercel_handle *_Atomic chunks[CHUNKS_MAX]; /* append only */
static _Atomic uint32_t chunk_count;
static struct tiercel_handle *free_handles; /* under list_lock */
static uint32_t entries_used;               /* of the last chunk, under list_lock */
static uint64_t hand;                       /* number of an entry, under move_lock */
static _Atomic uint32_t list_lock, move_lock;
static struct tiercel_handle *_Atomic copied; /* the entry whose object is read by a mover */
static _Thread_local uint32_t pins_until_step = STEP_PINS;

static void *address_of(uint64_t word) {
    return (void *)(uintptr_t)(word & ADDRESS);
}
static unsigned pins_of(uint64_t word) {
    return (unsigned)(word >> ADDRESS_BITS) & PINS_MAX;
}

static int fail_with(int error) {
    errno = error;
    return -1;
}

/* ---- The table ------------------------------------------------------------------------------- */

/* Under list_lock. */
static bool add_chunk(void) {
    uint32_t count = atomic_load_explicit(&chunk_count, memory_order_relaxed);
    if (count == CHUNKS_MAX)
        return false;
    void *chunk = tcl_os_mmap(NULL, CHUNK_ENTRIES * sizeof(struct tiercel_handle),
                              PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (chunk == MAP_FAILED)
        return false;
    atomic_store_explicit(&chunks[count], chunk, memory_order_relaxed);
    atomic_store_explicit(&chunk_count, count + 1, memory_order_release);
    entries_used = 0;
    return true;
}

static struct tiercel_handle *take_entry(void) {
    if (!tcl_lock(&list_lock))
        return NULL;
    struct tiercel_handle *entry = free_handles;
    uint32_t count = atomic_load_explicit(&chunk_count, memory_order_relaxed);
    if (entry)
        free_handles = entry->next;
    else if ((count && entries_used < CHUNK_ENTRIES) || add_chunk())
        entry =
            &chunks[atomic_load_explicit(&chunk_count, memory_order_relaxed) - 1][entries_used++];
    tcl_unlock(&list_lock);
    return entry;
}

/* False: it stays taken, as the list was locked for too long. */
static void give_entry(struct tiercel_handle *entry) {
    if (!tcl_lock(&list_lock))
        return;
    entry->next = free_handles;
    free_handles = entry;
    tcl_unlock(&list_lock);
}

/* ---- Moves ----------------------------------------------------------------------------------- */

static bool has_memories(void) {
    return tcl_attached() && tcl_is_our_malloc() &&
           tcl_heat_arena(TCL_COLD) != 0; /* the slowest is not the fastest */
}

/* Copies an object that no pin holds. Under move_lock. errno of why it did not move; 0. */
static int copy_to(struct tiercel_handle *entry, enum tcl_temperature to) {
    if (to == TCL_HOT && tcl_heat_arena(TCL_HOT) != 0)
        return ENOMEM;
    uint64_t word = atomic_load_explicit(&entry->word, memory_order_acquire);
    if (!word || pins_of(word))
        return word ? EBUSY : EINVAL;
    atomic_store(&copied, entry);
    if (!atomic_compare_exchange_strong(&entry->word, &word, word | MOVING)) {
        atomic_store(&copied, NULL);
        return EBUSY;
    }
    void *fresh = tcl_small_of_heat(entry->bytes, false, to);
    if (fresh)
        memcpy(fresh, address_of(word), entry->bytes);
    uint64_t moving = word | MOVING, next = fresh ? (uint64_t)(uintptr_t)fresh : word;
    bool is_done = atomic_compare_exchange_strong(&entry->word, &moving, next);
    atomic_store(&copied, NULL);
    if (is_done && fresh)
        entry->temperature = (uint8_t)to;
    if (fresh)
        tcl_own_free(is_done ? address_of(word) : fresh);
    return !fresh ? ENOMEM : is_done ? 0 : EBUSY;
}

static struct tiercel_handle *entry_at(uint64_t number) {
    return &atomic_load_explicit(&chunks[number / CHUNK_ENTRIES],
                                 memory_order_relaxed)[number % CHUNK_ENTRIES];
}

/* What the hand does at an entry. */
static void look_at(struct tiercel_handle *entry) {
    uint32_t uses = atomic_exchange_explicit(&entry->uses, 0, memory_order_relaxed);
    if (!atomic_load_explicit(&entry->word, memory_order_acquire) || !entry->bytes)
        return;
    entry->idle_rounds = uses                             ? 0
                         : entry->idle_rounds < UINT8_MAX ? entry->idle_rounds + 1
                                                          : UINT8_MAX;
    bool is_hot = entry->temperature == TCL_HOT;
    if (uses >= HOT_USES && !is_hot)
        copy_to(entry, TCL_HOT);
    else if (entry->idle_rounds >= IDLE_ROUNDS && entry->temperature != TCL_COLD)
        copy_to(entry, TCL_COLD);
}

static __attribute__((noinline)) void step(void) {
    pins_until_step = STEP_PINS;
    uint32_t is_free = 0;
    if (!has_memories() || !atomic_compare_exchange_strong(&move_lock, &is_free, 1))
        return;
    int saved = errno;
    uint64_t all =
        (uint64_t)atomic_load_explicit(&chunk_count, memory_order_acquire) * CHUNK_ENTRIES;
    for (unsigned i = 0; i < STEP_ENTRIES && all; i++)
        look_at(entry_at(hand++ % all));
    tcl_unlock(&move_lock);
    errno = saved;
}

void tcl_handles_after_fork_child(void) {
    uint32_t count = atomic_load_explicit(&chunk_count, memory_order_relaxed);
    atomic_store(&copied, NULL);
    atomic_store(&list_lock, 0);
    atomic_store(&move_lock, 0);
    for (uint64_t n = 0; n < (uint64_t)count * CHUNK_ENTRIES; n++)
        if (atomic_load_explicit(&entry_at(n)->word, memory_order_relaxed) & MOVING)
            atomic_fetch_and(&entry_at(n)->word, ~MOVING);
}

/* ---- tiercel.h ------------------------------------------------------------------------------- */

/* Memory for an object; TCL_LUKEWARM: it is among all others. */
static void *memory_of(size_t bytes, enum tcl_temperature *heat) {
    *heat = tcl_heat_arena(TCL_HOT) == 0 ? TCL_HOT : TCL_COLD;
    void *memory =
        bytes < SMALL_LIMIT && has_memories() ? tcl_small_of_heat(bytes, false, *heat) : NULL;
    if (memory)
        return memory;
    *heat = TCL_LUKEWARM;
    return tiercel_alloc(bytes, NULL);
}

TCL_EXPORT struct tiercel_handle *tiercel_handle_alloc(size_t bytes) {
    tcl_session_want();
    struct tiercel_handle *entry = take_entry();
    enum tcl_temperature heat = TCL_LUKEWARM;
    void *memory = entry ? memory_of(bytes, &heat) : NULL;
    if (!memory || (uintptr_t)memory > ADDRESS) {
        if (entry)
            give_entry(entry);
        tiercel_free(memory);
        errno = ENOMEM;
        return NULL;
    }
    entry->bytes = bytes < SMALL_LIMIT ? (uint16_t)(bytes ? bytes : 1) : 0;
    entry->temperature = (uint8_t)heat;
    entry->idle_rounds = 0;
    atomic_store_explicit(&entry->uses, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->word, (uint64_t)(uintptr_t)memory, memory_order_release);
    return entry;
}

TCL_EXPORT void *tiercel_handle_pin(struct tiercel_handle *handle) {
    uint64_t word = atomic_load_explicit(&handle->word, memory_order_relaxed), next;
    do {
        if (tcl_unlikely(pins_of(word) == PINS_MAX || !word)) {
            errno = word ? EAGAIN : EINVAL;
            return NULL;
        }
        next = (word & ~MOVING) + ONE_PIN;
    } while (!atomic_compare_exchange_weak_explicit(&handle->word, &word, next,
                                                    memory_order_acquire, memory_order_relaxed));
    uint32_t uses = atomic_load_explicit(&handle->uses, memory_order_relaxed);
    atomic_store_explicit(&handle->uses, uses + 1, memory_order_relaxed);
    return address_of(word);
}

TCL_EXPORT void tiercel_handle_unpin(struct tiercel_handle *handle) {
    uint64_t word = atomic_load_explicit(&handle->word, memory_order_relaxed);
    do {
        if (tcl_unlikely(!pins_of(word)))
            return; /* one too many */
    } while (!atomic_compare_exchange_weak_explicit(&handle->word, &word, word - ONE_PIN,
                                                    memory_order_release, memory_order_relaxed));
    if (tcl_unlikely(--pins_until_step == 0))
        step();
}

TCL_EXPORT int tiercel_handle_move(struct tiercel_handle *handle,
                                   enum tiercel_temperature temperature) {
    if (temperature != TIERCEL_HOT && temperature != TIERCEL_COLD)
        return fail_with(EINVAL);
    if (!handle->bytes || !has_memories())
        return fail_with(ENOTSUP);
    if (!tcl_lock(&move_lock))
        return fail_with(EBUSY);
    int saved = errno;
    int error = copy_to(handle, (enum tcl_temperature)temperature);
    tcl_unlock(&move_lock);
    errno = saved;
    return error ? fail_with(error) : 0;
}

TCL_EXPORT int tiercel_handle_free(struct tiercel_handle *handle) {
    if (!handle)
        return 0;
    uint64_t word = atomic_load_explicit(&handle->word, memory_order_relaxed);
    do {
        if (pins_of(word) || !word)
            return fail_with(word ? EBUSY : EINVAL);
    } while (!atomic_compare_exchange_weak(&handle->word, &word, 0));
    while (atomic_load(&copied) == handle)
        sched_yield(); /* at most 4 KiB are copied */
    tiercel_free(address_of(word));
    give_entry(handle);
    return 0;
}
