/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * heap_far.c: objects outside the reserved range, one mapping each.
 * In: sizes. Out: OS-page-aligned objects. Rare: no range could be reserved, or it is used up.
 * Knows nothing of runs; these objects are not tracked.
 *
 * A hash table has their addresses, so that any pointer can be looked up without being
 * dereferenced.
 */
#include "heap.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

struct far {
    uintptr_t addr; /* 0 free, 1 deleted */
    size_t bytes;
};

static struct far *table;
static size_t table_slots; /* a power of two */
static size_t table_live;  /* objects */
static size_t table_used;  /* objects and deleted slots */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define FIRST_SLOTS 256 /* of 16 bytes: one OS page. Chosen, not measured */
#define DELETED 1

/* Fibonacci hashing, of which the upper half depends on all bits of the address. */
static size_t hash_of(uintptr_t addr) {
    return (addr >> PAGE_SHIFT) * 0x9e3779b97f4a7c15ull >> 32;
}

/* Ends at an empty slot: see make_room. */
static struct far *slot_of(uintptr_t addr) {
    size_t i = hash_of(addr);
    for (i &= table_slots - 1; table_slots && table[i].addr; i = (i + 1) & (table_slots - 1))
        if (table[i].addr == addr)
            return &table[i];
    return NULL;
}

static void put(struct far entry) {
    size_t i = hash_of(entry.addr);
    for (i &= table_slots - 1; table[i].addr > DELETED; i = (i + 1) & (table_slots - 1)) {
    }
    table_live++;
    table_used += table[i].addr == 0;
    tcl_assert(table_live <= table_used && table_used < table_slots);
    table[i] = entry;
}

static void *map(size_t bytes) {
    void *p = tcl_os_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Before an object gets a new address: copies the table without its deleted slots when it is half
 * full, to twice as many slots where a quarter of them has objects. */
static bool make_room(void) {
    if (table_used * 2 < table_slots)
        return true;
    size_t old_slots = table_slots, slots = old_slots ? old_slots : FIRST_SLOTS;
    slots = table_live * 4 >= slots ? slots * 2 : slots;
    struct far *old = table, *fresh = map(slots * sizeof(struct far));
    if (!fresh)
        return false;
    table = fresh;
    table_slots = slots;
    table_live = table_used = 0;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].addr > DELETED)
            put(old[i]);
    if (old)
        tcl_os_munmap(old, old_slots * sizeof(struct far));
    return true;
}

void *tcl_far_alloc(size_t bytes, size_t align) {
    size_t size = PAGES_OF(bytes) << PAGE_SHIFT;
    size_t slack = align > PAGE ? align - PAGE : 0;
    if (size > PTRDIFF_MAX - slack) {
        errno = ENOMEM;
        return NULL;
    }
    int saved = errno;
    tcl_limit_look();
    char *base = map(size + slack);
    if (base) {
        char *p = (char *)(((uintptr_t)base + slack) & ~(uintptr_t)(slack ? align - 1 : 0));
        if (p > base)
            tcl_os_munmap(base, (size_t)(p - base));
        if (p + size < base + size + slack)
            tcl_os_munmap(p + size, (size_t)(base + slack - p));
        heap_lock(&lock);
        bool room = make_room();
        if (room)
            put((struct far){(uintptr_t)p, size});
        heap_unlock(&lock);
        if (room) {
            errno = saved;
            return p;
        }
        tcl_os_munmap(p, size);
    }
    errno = ENOMEM;
    return NULL;
}

/* Removes p and returns its bytes; 0 when it is not there. */
static size_t remove_entry(const void *p) {
    heap_lock(&lock);
    struct far *far = slot_of((uintptr_t)p);
    size_t bytes = far ? far->bytes : 0;
    if (far) {
        far->addr = DELETED;
        table_live--;
    }
    heap_unlock(&lock);
    return bytes;
}

bool tcl_far_free(void *p) {
    if (__atomic_load_n(&table_used, __ATOMIC_RELAXED) == 0)
        return false;
    size_t bytes = remove_entry(p);
    if (bytes) {
        int saved = errno;
        tcl_os_munmap(p, bytes);
        errno = saved;
    }
    return bytes != 0;
}

size_t tcl_far_usable(const void *p) {
    if (__atomic_load_n(&table_used, __ATOMIC_RELAXED) == 0)
        return 0;
    heap_lock(&lock);
    struct far *far = slot_of((uintptr_t)p);
    size_t bytes = far ? far->bytes : 0;
    heap_unlock(&lock);
    return bytes;
}

void *tcl_far_realloc(void *p, size_t bytes) {
    size_t size = PAGES_OF(bytes) << PAGE_SHIFT;
    int saved = errno;
    heap_lock(&lock);
    bool has_room = make_room();
    heap_unlock(&lock);
    size_t old = remove_entry(p);
    /* In place its own slot is reused; elsewhere it needs another one. */
    void *to = tcl_os_mremap(p, old, size, has_room ? MREMAP_MAYMOVE : 0, NULL);
    heap_lock(&lock);
    put(to == MAP_FAILED ? (struct far){(uintptr_t)p, old} : (struct far){(uintptr_t)to, size});
    heap_unlock(&lock);
    errno = to == MAP_FAILED ? ENOMEM : saved;
    return to == MAP_FAILED ? NULL : to;
}

static bool fork_holds_lock; /* under it */

void tcl_far_before_fork(void) {
    fork_holds_lock = heap_lock_for_fork(&lock);
}
void tcl_far_after_fork_child(void) {
    if (!fork_holds_lock)
        heap_lock_inherit(&lock);
}

void tcl_far_after_fork(void) {
    if (fork_holds_lock)
        heap_unlock(&lock);
}
