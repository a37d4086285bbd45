/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_map_alone.c: the list of mmap objects and their slots stay consistent over random calls,
 * with a lock that is not always free and attaches at any time, also while an mremap is going on.
 * In: map.c itself, and addresses that are not mapped. Out: one line, 0 when all hold. Knows
 * nothing of sessions.
 */
#include "../assert.c"
#include "../track/map.c"
#include "check.h"

#define CALLS 200000 /* chosen: less than a second */
#define PAGES 64u    /* few, so that ranges overlap often */
#define BASE ((uintptr_t)1 << 40)

static struct tcl_process process = {.epoch = 1};
struct tcl_process *tcl_process = &process;
_Atomic uint32_t tcl_mode = TCL_MODE_TRACKED;
char *tcl_shared;
__thread bool tcl_in_fork;
static bool is_lock_taken;
static uint32_t carves;

bool tcl_lock(_Atomic uint32_t *word) {
    return !is_lock_taken && !atomic_exchange(word, 1);
}
bool tcl_provide(const void *start, size_t bytes) {
    (void)start, (void)bytes;
    return true;
}
uint32_t tcl_next_carve(void) {
    return ++carves;
}
void tcl_warn(const char *what) {
    fprintf(stderr, "%s\n", what);
}
bool tcl_tracking(void) {
    return true;
}
void tcl_session_poll(size_t bytes) {
    (void)bytes;
}
void tcl_note_born(const struct tcl_use *use) {
    (void)use;
}
void tcl_note_died(const struct tcl_use *use) {
    (void)use;
}
void tcl_note_head(const struct tcl_use *use, struct tcl_head head) {
    (void)use, (void)head;
}
void tcl_note_resized(const struct tcl_use *use) {
    (void)use;
}
void tcl_note_cut(uintptr_t addr, size_t bytes, uint32_t carve) {
    (void)addr, (void)bytes, (void)carve;
}
uint32_t tcl_birth_site(size_t bytes, void *return_address, void *frame_address) {
    (void)bytes, (void)return_address, (void)frame_address;
    return 0;
}
unsigned tcl_birth_mapped(size_t bytes, uint32_t site, bool is_reserved) {
    (void)bytes, (void)site, (void)is_reserved;
    return TCL_ARENA_UNKNOWN;
}
struct tcl_split tcl_birth_split(size_t bytes, uint32_t site, unsigned arena) {
    (void)bytes, (void)site, (void)arena;
    return (struct tcl_split){0};
}
void tcl_birth_refund(unsigned arena, size_t bytes) {
    (void)arena, (void)bytes;
}
void tcl_birth_charge(unsigned arena, size_t bytes) {
    (void)arena, (void)bytes;
}
void tcl_note_share(const struct tcl_use *use, uint64_t share) {
    (void)use, (void)share;
}
uint32_t tcl_site_of_kind(uint32_t id, enum tcl_site_kind kind) {
    return kind == TCL_SITE_CALL ? 0 : id;
}
bool tcl_limit_look(void) {
    return false;
}
void tcl_image_check(void) {}
int tcl_arena_node(unsigned arena) {
    (void)arena;
    return TCL_NODE_NONE;
}
bool tcl_os_bind(uintptr_t start, size_t bytes, int node) {
    (void)start, (void)bytes, (void)node;
    return false;
}
bool tcl_vmem_any(uintptr_t start, size_t bytes) {
    (void)start, (void)bytes;
    return false;
}
bool tcl_vmem_cut(uintptr_t start, size_t bytes) {
    (void)start, (void)bytes;
    return true;
}
int tcl_vmem_protect(uintptr_t start, size_t bytes, int prot) {
    return (int)syscall(SYS_mprotect, start, bytes, prot);
}
int tcl_vmem_set_rights(uintptr_t start, size_t bytes, int prot) {
    return (int)syscall(SYS_mprotect, start, bytes, prot);
}
int tcl_os_madvise(void *start, size_t bytes, int advice) {
    return (int)syscall(SYS_madvise, start, bytes, advice);
}

/* Objects are sorted and do not overlap; each slot in use has the address of its object. */
static void check_objects(int call) {
    size_t with_slot = 0, used = 0;
    for (size_t i = 0; i < live_count; i++) {
        const struct entry *entry = &live[i];
        CHECK(!i || entry[-1].addr + entry[-1].bytes <= entry->addr, "call %d: overlap", call);
        if (entry->slot == NO_SLOT)
            continue;
        const struct tcl_map *map = &tcl_maps()[entry->slot];
        CHECK(map->addr == entry->addr && map->size == entry->bytes,
              "call %d: slot %u: %lx %lx, %lx %lx", call, entry->slot, map->addr, map->size,
              entry->addr, entry->bytes);
        with_slot++;
    }
    for (uint32_t slot = 0; slot < slots_used; slot++)
        used += tcl_maps()[slot].addr != 0;
    CHECK(used == with_slot && slots_used == used + free_count,
          "call %d: %zu of %zu slots, %u free", call, used, with_slot, free_count);
}

static uint32_t next_random(uint32_t below) {
    static uint32_t seed = 1;
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

static void attach(void) {
    memset(tcl_maps(), 0, TCL_MAPS_MAX / 16 * sizeof(struct tcl_map));
    CHECK(tcl_map_fill());
}

/* An mremap of a whole object, which fails, resizes it in place or moves it. */
static void remap(void) {
    struct entry entry;
    uint32_t fill;
    if (!live_count)
        return;
    entry = live[next_random((uint32_t)live_count)];
    if (!take_out(entry.addr, entry.bytes, &entry, &fill))
        return;
    if (next_random(4) == 0)
        attach();
    size_t bytes = (1 + next_random(8)) * TCL_PAGE;
    switch (next_random(3)) {
    case 0:
        put_back(entry, fill, entry.addr, entry.bytes);
        break;
    case 1:
        put_back(entry, fill, entry.addr, bytes);
        break;
    default:
        put_back(entry, fill, BASE + next_random(PAGES) * TCL_PAGE, bytes);
    }
}

int main(void) {
    tcl_shared = tcl_os_mmap(NULL, TCL_RINGS_AT, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(tcl_shared != MAP_FAILED);
    for (int call = 0; call < CALLS; call++) {
        uintptr_t addr = BASE + next_random(PAGES) * TCL_PAGE;
        size_t bytes = (1 + next_random(8)) * TCL_PAGE;
        uint32_t what = next_random(16);
        is_lock_taken = what < 12 && next_random(8) == 0;
        struct entry entry = {.addr = addr, .bytes = bytes, .slot = NO_SLOT};
        entry.share = next_random(4) == 0 ? 1 + next_random(3) : 0;
        if (what < 4)
            mapped(entry, true);
        else if (what < 5)
            next_random(2) ? tcl_map_image(addr, bytes, 1) : tcl_map_image_gone(addr, bytes);
        else if (what < 7)
            mapped(entry, false); /* a device */
        else if (what < 12)
            unmapped(addr, bytes);
        else if (what < 15)
            remap();
        else if (next_random(16) == 0)
            attach();
        is_lock_taken = false;
        check_objects(call);
    }
    printf("track_map: %d calls, objects and slots consistent\n", CALLS);
    return 0;
}
