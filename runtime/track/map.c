/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * map.c: mmap, munmap and mremap of the program, observed; the kernel does the work.
 * In: calls of the program; what image.c finds. Out: mmap objects, in the object table and in
 * records. Knows nothing of the heap. glibc's own calls (thread stacks, the loader) bypass these
 * functions.
 *
 * An object is a mapping of at least one OS page that is no stack: private anonymous memory, shared
 * memory, a file. Reservations (PROT_NONE) count, because their owner may open them by mprotect,
 * which is not observed here; residency shows what is populated. A fixed private mapping inside an
 * object, by which collectors commit and decommit memory, leaves the object as it is. Of devices
 * nothing is an object.
 *
 * Shared memory and files have a name for what they show (tcl_map.share), so that the daemon counts
 * it once: of a file its device, inode and offset; of MAP_ANONYMOUS memory a number that forked
 * children inherit with it.
 *
 *   live[]  sorted by address, private     |a....|    |b..|  |c.......|
 *   munmap of a middle part                |a.|  |a'| : a is resized, a' is born at the same site
 *
 * Long, because each call changes the same table.
 *
 * The wait for the lock is bounded, because a signal handler may call mmap while its own thread
 * holds it. A call that fails to get it writes a CUT record and is counted; a stale entry goes when
 * its addresses are mapped or unmapped next.
 */
#include "session.h"
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Entries at first, 256 * 40 bytes; doubled up to TCL_MAPS_MAX. Chosen, not measured. */
#define GROW_FIRST 256
#define NO_SLOT UINT32_MAX
/* Mappings bound one by one. Each may split one mapping of the 65530 that a process may have
 * (vm.max_map_count); a quarter of them. */
#define BINDS_MAX 16384

struct entry {
    uintptr_t addr;
    size_t bytes;
    uint64_t share; /* tcl_map.share */
    uint32_t site, carve, slot;
    uint16_t generation;
    uint8_t arena;
    bool is_image;        /* no call of the program made it */
    struct tcl_head head; /* of an object that is born */
};

static struct entry *live; /* all of this under tcl_process->map_lock */
static size_t live_count, live_room;
static uint32_t free_slots[TCL_MAPS_MAX], free_count, slots_used;
static _Atomic uint32_t binds; /* roughly: mappings that are bound */
static uint32_t fills;         /* calls of tcl_map_fill, each of which hands out all slots anew */

static size_t pages_up(size_t bytes) {
    return (bytes + TCL_PAGE - 1) & -(size_t)TCL_PAGE;
}

/* ---- The object table ------------------------------------------------------------------------ */

static bool enter(struct entry *entry) {
    if (entry->slot == NO_SLOT) {
        uint32_t slot = free_count ? free_slots[--free_count] : slots_used;
        if (slot == TCL_MAPS_MAX)
            return false;
        struct tcl_map *first = &tcl_maps()[slot];
        if (slot == slots_used) {
            if (!tcl_provide(first, sizeof(*first)))
                return false;
            __atomic_store_n(&tcl_header()->map_high_water, ++slots_used, __ATOMIC_RELEASE);
        }
        entry->slot = slot;
    }
    struct tcl_map *map = &tcl_maps()[entry->slot];
    __atomic_store_n(&map->addr, 0, __ATOMIC_RELEASE);
    map->size = entry->bytes;
    map->site = entry->site;
    map->carve = entry->carve;
    map->generation = entry->generation;
    map->flags_low = TCL_MAPPED;
    map->arena = entry->arena;
    map->share = entry->share;
    __atomic_store_n(&map->addr, entry->addr, __ATOMIC_RELEASE);
    return true;
}

static struct tcl_use use_of(const struct entry *entry, uint8_t flags) {
    return (struct tcl_use){.addr = entry->addr,
                            .bytes = entry->bytes,
                            .site = entry->site,
                            .carve = entry->carve,
                            .generation = entry->generation,
                            .arena = entry->arena,
                            .flags = TCL_MAPPED | flags};
}

static void report_born(struct entry *entry, uint8_t flags) {
    if (!tcl_attached())
        return;
    struct tcl_use use = use_of(entry, flags);
    if (!enter(entry) && tcl_attached())
        __atomic_fetch_add(&tcl_header()->map_overflows, 1, __ATOMIC_RELAXED);
    tcl_note_born(&use);
    if (tcl_unlikely(entry->head.bytes)) {
        tcl_note_head(&use, entry->head);
        entry->head.bytes = 0; /* once: parts that stay when it is cut have none */
    }
    if (tcl_unlikely(entry->share))
        tcl_note_share(&use, entry->share);
}

static void report_died(struct entry *entry) {
    if (!tcl_attached())
        return;
    struct tcl_use use = use_of(entry, 0);
    tcl_note_died(&use);
    if (entry->slot == NO_SLOT)
        return;
    __atomic_store_n(&tcl_maps()[entry->slot].addr, 0, __ATOMIC_RELEASE);
    tcl_assert(free_count < TCL_MAPS_MAX);
    free_slots[free_count++] = entry->slot;
    entry->slot = NO_SLOT;
}

static void report_resized(struct entry *entry) {
    entry->generation++;
    if (!tcl_attached())
        return;
    struct tcl_use use = use_of(entry, 0);
    if (entry->slot != NO_SLOT)
        enter(entry);
    tcl_note_resized(&use);
}

bool tcl_map_fill(void) {
    if (!tcl_lock(&tcl_process->map_lock))
        return tcl_attached(); /* each object is reported when it changes */
    free_count = slots_used = 0;
    fills++;
    for (size_t i = 0; i < live_count; i++) {
        live[i].slot = NO_SLOT;
        if (!enter(&live[i]) && tcl_attached())
            __atomic_fetch_add(&tcl_header()->map_overflows, 1, __ATOMIC_RELAXED);
    }
    tcl_unlock(&tcl_process->map_lock);
    return tcl_attached();
}

void tcl_map_start(void) {
    if (tcl_tracking())
        return;
    /* No daemon will read it: drop what was recorded before the constructor. */
    if (live)
        tcl_os_munmap(live, live_room * sizeof(*live));
    live = NULL;
    live_count = live_room = 0;
}

/* ---- The sorted array ------------------------------------------------------------------------ */

/* Index of the first entry that ends above addr. */
static size_t find(uintptr_t addr) {
    tcl_assert_debug(tcl_is_locked(&tcl_process->map_lock));
    size_t first = 0, last = live_count;
    while (first < last) {
        size_t middle = first + (last - first) / 2;
        if (live[middle].addr + live[middle].bytes <= addr)
            first = middle + 1;
        else
            last = middle;
    }
    return first;
}

static bool make_room(void) {
    tcl_assert(live_count <= live_room);
    if (live_count < live_room)
        return true;
    size_t room = live_room ? live_room * 2 : GROW_FIRST;
    if (room > TCL_MAPS_MAX)
        return false;
    struct entry *grown = tcl_os_mmap(NULL, room * sizeof(*grown), PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (grown == MAP_FAILED)
        return false;
    if (live) {
        memcpy(grown, live, live_count * sizeof(*live));
        tcl_os_munmap(live, live_room * sizeof(*live));
    }
    live = grown;
    live_room = room;
    return true;
}

/* NULL, counted: the array is full. Its addresses are of no other object. */
static struct entry *add(struct entry entry) {
    if (!make_room()) {
        if (tcl_attached())
            __atomic_fetch_add(&tcl_header()->map_overflows, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    size_t at = find(entry.addr);
    tcl_assert_debug(at == live_count || entry.addr + entry.bytes <= live[at].addr);
    memmove(&live[at + 1], &live[at], (live_count - at) * sizeof(*live));
    live_count++;
    live[at] = entry;
    return &live[at];
}

static void insert(struct entry entry, uint8_t flags) {
    struct entry *added = add(entry);
    if (added)
        report_born(added, flags);
}

static void erase(size_t at) {
    /* The mapping takes its binding along. Tails of bound ones were not counted. */
    uint32_t bound = atomic_load_explicit(&binds, memory_order_relaxed);
    if (live[at].arena != TCL_ARENA_UNKNOWN && bound)
        atomic_store_explicit(&binds, bound - 1, memory_order_relaxed);
    report_died(&live[at]);
    live_count--;
    memmove(&live[at], &live[at + 1], (live_count - at) * sizeof(*live));
}

/* Takes [addr, addr + bytes) out of all objects it overlaps. */
static void cut(uintptr_t addr, size_t bytes) {
    uintptr_t end = addr + bytes;
    size_t at = find(addr);
    while (at < live_count && live[at].addr < end) {
        struct entry whole = live[at];
        uintptr_t whole_end = whole.addr + whole.bytes;
        if (whole.addr < addr) { /* its head remains */
            live[at].bytes = addr - whole.addr;
            report_resized(&live[at]);
            at++;
        } else {
            erase(at);
        }
        if (whole_end > end) { /* its tail remains */
            struct entry tail = {.addr = end,
                                 .bytes = whole_end - end,
                                 .site = whole.site,
                                 .carve = tcl_next_carve(),
                                 .slot = NO_SLOT,
                                 .arena = whole.arena,
                                 .is_image = whole.is_image};
            insert(tail, 0);
            return;
        }
    }
}

static bool is_inside_one(uintptr_t addr, size_t bytes) {
    size_t at = find(addr);
    return at < live_count && live[at].addr <= addr &&
           addr + bytes <= live[at].addr + live[at].bytes;
}

/* ---- Effects of the calls -------------------------------------------------------------------- */

static bool is_observed(void) {
    return atomic_load_explicit(&tcl_mode, memory_order_relaxed) != TCL_MODE_ALONE;
}

/* Without the lock: reported as a CUT, which needs no object. */
static void report_missed(uintptr_t addr, size_t bytes) {
    if (!tcl_attached())
        return;
    __atomic_fetch_add(&tcl_header()->map_overflows, 1, __ATOMIC_RELAXED);
    tcl_note_cut(addr, bytes, tcl_next_carve());
}

/* What a mapping shows. */
enum contents { CONTENTS_NONE, CONTENTS_PRIVATE, CONTENTS_SHARED, CONTENTS_FILE };

static enum contents contents_of(size_t bytes, int flags) {
    int type = flags & MAP_TYPE;
    if (bytes < TCL_PAGE || flags & (MAP_STACK | MAP_GROWSDOWN))
        return CONTENTS_NONE;
    if (type == MAP_SHARED || type == MAP_SHARED_VALIDATE)
        return CONTENTS_SHARED;
    if (type != MAP_PRIVATE)
        return CONTENTS_NONE;
    return flags & MAP_ANONYMOUS ? CONTENTS_PRIVATE : CONTENTS_FILE;
}

static void mapped(struct entry entry, bool is_object) {
    if (!tcl_lock(&tcl_process->map_lock)) {
        report_missed(entry.addr, entry.bytes);
        return;
    }
    bool is_commit = is_object && !entry.share && is_inside_one(entry.addr, entry.bytes);
    if (!is_commit) {
        cut(entry.addr, entry.bytes);
        entry.carve = tcl_next_carve();
        if (is_object)
            insert(entry, 0);
    }
    tcl_unlock(&tcl_process->map_lock);
}

void tcl_map_image(uintptr_t addr, size_t bytes, uint32_t site) {
    struct entry entry = {.addr = addr,
                          .bytes = bytes,
                          .site = site,
                          .slot = NO_SLOT,
                          .arena = TCL_ARENA_UNKNOWN,
                          .is_image = true};
    if (!tcl_lock(&tcl_process->map_lock)) {
        report_missed(addr, bytes);
        return;
    }
    cut(addr, bytes);
    entry.carve = tcl_next_carve();
    insert(entry, 0);
    tcl_unlock(&tcl_process->map_lock);
}

/* What the program has mapped there meanwhile stays. */
void tcl_map_image_gone(uintptr_t addr, size_t bytes) {
    if (!tcl_lock(&tcl_process->map_lock)) {
        report_missed(addr, bytes);
        return;
    }
    size_t at = find(addr);
    while (at < live_count && live[at].addr < addr + bytes) {
        bool is_inside = live[at].addr >= addr && live[at].addr + live[at].bytes <= addr + bytes;
        if (live[at].is_image && is_inside)
            erase(at);
        else
            at++;
    }
    tcl_unlock(&tcl_process->map_lock);
}

static void unmapped(uintptr_t addr, size_t bytes) {
    if (!tcl_lock(&tcl_process->map_lock)) {
        report_missed(addr, bytes);
        return;
    }
    cut(addr, bytes);
    tcl_unlock(&tcl_process->map_lock);
}

/* Before an mremap: takes the object out if the range is one whole object. *fill: see `fills`. */
static bool take_out(uintptr_t addr, size_t bytes, struct entry *entry, uint32_t *fill) {
    if (!tcl_lock(&tcl_process->map_lock))
        return false;
    size_t at = find(addr);
    bool found = at < live_count && live[at].addr == addr && live[at].bytes == bytes;
    *fill = fills;
    if (found) {
        *entry = live[at];
        live_count--;
        memmove(&live[at], &live[at + 1], (live_count - at) * sizeof(*live));
    }
    tcl_unlock(&tcl_process->map_lock);
    return found;
}

/* After it: the object with its new address and size; after a failure, with the old ones. A session
 * that was attached meanwhile does not have it: there it is born. */
static void put_back(struct entry entry, uint32_t fill, uintptr_t addr, size_t bytes) {
    if (!tcl_lock(&tcl_process->map_lock)) {
        report_missed(entry.addr, entry.bytes);
        return;
    }
    struct entry old = entry;
    bool is_known = fill == fills;
    entry.addr = addr;
    entry.bytes = bytes;
    cut(addr, bytes); /* MREMAP_FIXED replaces objects; others are stale */
    if (addr != old.addr || !is_known) {
        entry.slot = NO_SLOT;
        entry.carve = tcl_next_carve();
        entry.generation = 0;
        insert(entry, is_known ? TCL_CONTINUED : 0);
        if (is_known) {
            tcl_birth_charge(old.arena, old.bytes); /* the death refunds what lives on */
            report_died(&old);
        }
    } else {
        if (bytes > old.bytes)
            entry.carve = tcl_next_carve(); /* newer than earlier objects where it grows */
        struct entry *added = add(entry);
        if (!added)
            report_died(&old);
        else if (bytes != old.bytes)
            report_resized(added);
    }
    tcl_unlock(&tcl_process->map_lock);
}

/* Binds memory to the arena that birth.c chooses, as for any other birth, and returns the arena.
 * Address space that is only reserved takes nothing of a budget. What is opened there by mprotect
 * may exceed none: where there is no room for all of it, it is the slowest arena's. Not bound
 * beyond BINDS_MAX mappings. */
static uint8_t bind_birth(uintptr_t addr, size_t bytes, uint32_t site, bool is_reserved,
                          struct tcl_head *head) {
    unsigned arena = tcl_birth_mapped(bytes, site, is_reserved);
    if (tcl_likely(arena == TCL_ARENA_UNKNOWN))
        return TCL_ARENA_UNKNOWN;
    int node = tcl_arena_node(arena);
    if (node >= 0) {
        if (atomic_load_explicit(&binds, memory_order_relaxed) >= BINDS_MAX) {
            if (!is_reserved)
                tcl_birth_refund(arena, bytes);
            return TCL_ARENA_UNKNOWN;
        }
        atomic_fetch_add_explicit(&binds, 1, memory_order_relaxed);
        tcl_os_bind(addr, bytes, node);
        struct tcl_split split = {0};
        if (!is_reserved)
            split = tcl_birth_split(bytes, site, arena);
        for (unsigned i = 0; i < split.count; i++)
            tcl_os_bind(addr + split.ranges[i].at, split.ranges[i].bytes,
                        tcl_arena_node(split.arena));
        if (split.count && !split.is_planned)
            *head = (struct tcl_head){split.ranges[0].bytes, split.arena};
    }
    return node >= 0 || node == TCL_NODE_MODELLED ? (uint8_t)arena : TCL_ARENA_UNKNOWN;
}

/* What an object gains is a birth of its own. It dies as of the slower arena: refunding less than
 * was charged exceeds no budget. */
static void grown(struct entry *entry, uintptr_t addr, size_t bytes) {
    if (entry->share || entry->is_image || bytes <= entry->bytes)
        return;
    struct tcl_head gained = {0}; /* no record of a birth names it */
    size_t more = bytes - entry->bytes;
    uint8_t arena = bind_birth(addr + entry->bytes, more, entry->site, false, &gained);
    if (arena != TCL_ARENA_UNKNOWN && (entry->arena == TCL_ARENA_UNKNOWN || arena > entry->arena))
        entry->arena = arena;
}

/* ---- What mappings share --------------------------------------------------------------------- */

/* FNV-1a (draft-eastlake-fnv), folded into the 56 bits of tcl_map.share; never 0. */
static uint64_t name_of(const uint64_t *words, size_t count) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < count * 8; i++)
        hash = (hash ^ (words[i / 8] >> i % 8 * 8 & 0xff)) * 0x100000001b3ull;
    hash = (hash ^ hash >> TCL_SIZE_BITS) & ((1ull << TCL_SIZE_BITS) - 1);
    return hash ? hash : 1;
}

/* The name of what a file has from an offset on; 0: it is a device. */
static uint64_t name_of_file(int fd, off_t offset) {
    struct stat stat;
    if (syscall(SYS_fstat, fd, &stat) || !S_ISREG(stat.st_mode))
        return 0;
    return name_of((uint64_t[]){stat.st_dev, stat.st_ino, (uint64_t)offset}, 3);
}

/* The name of anonymous memory, which no other process makes up. */
static uint64_t name_of_shared(uintptr_t addr) {
    const uint64_t *random = (const uint64_t *)getauxval(AT_RANDOM);
    uint64_t pid = (uint64_t)syscall(SYS_getpid), number = tcl_next_carve();
    return name_of((uint64_t[]){random ? *random : 0, pid, number, addr}, 4);
}

/* Its site, name and arena; false: it is no object. */
static bool describe(struct entry *entry, enum contents contents, int prot, int flags, int fd,
                     off_t offset) {
    if (contents == CONTENTS_PRIVATE) {
        entry->arena =
            bind_birth(entry->addr, entry->bytes, entry->site, prot == PROT_NONE, &entry->head);
        return true;
    }
    entry->share = flags & MAP_ANONYMOUS ? name_of_shared(entry->addr) : name_of_file(fd, offset);
    if (entry->site)
        entry->site = tcl_site_of_kind(entry->site, contents == CONTENTS_SHARED ? TCL_SITE_SHARED
                                                                                : TCL_SITE_FILE);
    return entry->share != 0;
}

/* ---- The interposed functions ---------------------------------------------------------------- */

/* False, with errno, when a vregion there cannot end. */
static bool end_vregions(uintptr_t addr, size_t bytes) {
    return tcl_likely(!tcl_vmem_any(addr, bytes)) || tcl_vmem_cut(addr, pages_up(bytes));
}

static inline void *map_and_report(void *addr, size_t bytes, int prot, int flags, int fd,
                                   off_t offset, void *return_address, void *frame_address) {
    if (flags & MAP_FIXED && !end_vregions((uintptr_t)addr, bytes))
        return MAP_FAILED;
    void *p = tcl_os_mmap(addr, bytes, prot, flags, fd, offset);
    if (tcl_unlikely(p == MAP_FAILED && errno == ENOMEM) && tcl_limit_look())
        p = tcl_os_mmap(addr, bytes, prot, flags, fd, offset);
    if (p == MAP_FAILED || !is_observed())
        return p;
    int saved = errno;
    enum contents contents = contents_of(bytes, flags);
    struct entry entry = {.addr = (uintptr_t)p,
                          .bytes = pages_up(bytes),
                          .slot = NO_SLOT,
                          .arena = TCL_ARENA_UNKNOWN};
    bool is_object = contents != CONTENTS_NONE;
    if (is_object) {
        /* A file is no reason to attach: its memory is there without this process. */
        tcl_session_poll(contents == CONTENTS_FILE ? 0 : entry.bytes);
        tcl_image_check();
        if (tcl_tracking())
            entry.site = tcl_birth_site(bytes, return_address, frame_address);
        is_object = describe(&entry, contents, prot, flags, fd, offset);
    }
    if (is_object || flags & MAP_FIXED)
        mapped(entry, is_object);
    errno = saved;
    return p;
}

TCL_EXPORT void *mmap(void *addr, size_t bytes, int prot, int flags, int fd, off_t offset) {
    return map_and_report(addr, bytes, prot, flags, fd, offset, __builtin_return_address(0),
                          __builtin_dwarf_cfa());
}

TCL_EXPORT void *mmap64(void *addr, size_t bytes, int prot, int flags, int fd, off_t offset) {
    return map_and_report(addr, bytes, prot, flags, fd, offset, __builtin_return_address(0),
                          __builtin_dwarf_cfa());
}

/* Reported before the call: afterwards another thread may be given the addresses. */
TCL_EXPORT int munmap(void *addr, size_t bytes) {
    if (!end_vregions((uintptr_t)addr, bytes))
        return -1;
    if (is_observed() && bytes && !((uintptr_t)addr % TCL_PAGE) &&
        (uintptr_t)addr + pages_up(bytes) > (uintptr_t)addr) {
        int saved = errno;
        unmapped((uintptr_t)addr, pages_up(bytes));
        errno = saved;
    }
    return tcl_os_munmap(addr, bytes);
}

TCL_EXPORT void *mremap(void *addr, size_t old_bytes, size_t new_bytes, int flags, ...) {
    void *to = NULL;
    if (flags & MREMAP_FIXED) {
        va_list rest;
        va_start(rest, flags);
        to = va_arg(rest, void *);
        va_end(rest);
    }
    if (tcl_unlikely(tcl_vmem_any((uintptr_t)addr, old_bytes ? old_bytes : 1))) {
        errno = EINVAL; /* a vregion cannot change its address */
        return MAP_FAILED;
    }
    if (flags & MREMAP_FIXED && !end_vregions((uintptr_t)to, new_bytes))
        return MAP_FAILED;
    struct entry entry;
    uint32_t fill;
    bool whole = is_observed() && !(flags & MREMAP_DONTUNMAP) && old_bytes &&
                 take_out((uintptr_t)addr, pages_up(old_bytes), &entry, &fill);
    void *p = tcl_os_mremap(addr, old_bytes, new_bytes, flags, to);
    if (!is_observed())
        return p;
    int saved = errno;
    if (whole && p == MAP_FAILED) {
        put_back(entry, fill, entry.addr, entry.bytes);
    } else if (whole) {
        grown(&entry, (uintptr_t)p, pages_up(new_bytes));
        put_back(entry, fill, (uintptr_t)p, pages_up(new_bytes));
    } else if (p != MAP_FAILED) { /* not one whole object: cut out what is no longer mapped */
        if (old_bytes && !(flags & MREMAP_DONTUNMAP) && p != addr)
            unmapped((uintptr_t)addr, pages_up(old_bytes));
        else if (p == addr && new_bytes < old_bytes)
            unmapped((uintptr_t)addr + pages_up(new_bytes),
                     pages_up(old_bytes) - pages_up(new_bytes));
    }
    errno = saved;
    return p;
}

TCL_EXPORT int mprotect(void *addr, size_t bytes, int prot) {
    if (tcl_unlikely(tcl_vmem_any((uintptr_t)addr, bytes)))
        return tcl_vmem_protect((uintptr_t)addr, bytes, prot);
    return tcl_vmem_set_rights((uintptr_t)addr, bytes, prot);
}

/* Memory of the heap may need more than the kernel's call. */
TCL_EXPORT int madvise(void *addr, size_t bytes, int advice) {
    return tcl_os_madvise(addr, bytes, advice);
}

void *tcl_os_mmap(void *addr, size_t bytes, int prot, int flags, int fd, long offset) {
    return (void *)syscall(SYS_mmap, addr, bytes, prot, flags, fd, offset);
}

int tcl_os_munmap(void *addr, size_t bytes) {
    return (int)syscall(SYS_munmap, addr, bytes);
}

void *tcl_os_mremap(void *addr, size_t old_bytes, size_t new_bytes, int flags, void *to) {
    return (void *)syscall(SYS_mremap, addr, old_bytes, new_bytes, flags, to);
}
