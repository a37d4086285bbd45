/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc.c: sequences of the malloc family against a slow obvious model.
 * In: a list of steps. Out: every object has its size, its alignment and its contents until it is
 * freed, and zeroed memory is zero. Knows nothing of threads: tests/alloc_model.c has several.
 *
 * Births of small objects have the sites that the input says; every few hundred bytes one is
 * sampled, and every second site gets blocks apart at its first sampled birth.
 *
 * The sources are included, under other names than those of the sanitizer's own malloc. A step is
 * u8 which, u8 slot, and what it takes. The heap lives on from input to input.
 */
#define TCL_ASSERT_LEVEL 2
#define ALLOC_BY_SITE
#include "input.h"
#include <malloc.h>

#define malloc tested_malloc
#define free tested_free
#define cfree tested_cfree
#define calloc tested_calloc
#define realloc tested_realloc
#define reallocarray tested_reallocarray
#define malloc_usable_size tested_usable_size
#define posix_memalign tested_posix_memalign
#define aligned_alloc tested_aligned_alloc
#define memalign tested_memalign
#define valloc tested_valloc
#define pvalloc tested_pvalloc
#include "../alloc/heap.c"
#include "../alloc/heap_cache.c"
#include "../alloc/heap_far.c"
#include "../alloc/heap_home.c"
#include "../alloc/heap_range.c"
#include "../alloc/heap_split.c"
#include "../alloc/malloc.c"
#include "../assert.c"
#include "../keys.c"
#include "../tests/alloc_untracked.c"

/* Objects that live at a time. Chosen, not measured. */
#define SLOTS 32
/* Bytes that live at a time; a larger object is made and freed at once. */
#define LIVE_MAX ((size_t)256 << 20)

__thread bool tcl_in_fork;
_Atomic bool tcl_attach_due;
void tcl_session_attach_due(void) {}
bool tcl_birth_grow(unsigned arena, size_t bytes) {
    (void)arena, (void)bytes;
    return true;
}
_Atomic bool tcl_limit_due;
bool tcl_limit_look(void) {
    atomic_store(&tcl_limit_due, false);
    return false;
}
void tcl_session_note_block(size_t bytes) {
    (void)bytes;
}
bool tcl_forks_alone, tcl_locks_opened;
void tcl_lock_opened(uintptr_t start, size_t bytes) {
    (void)start, (void)bytes;
}
void tcl_warn(const char *what) {
    fprintf(stderr, "%s\n", what);
}

/* ---- Small objects by site ------------------------------------------------------------------- */

/* More than there can be blocks apart for. */
#define SITES 160u
/* Mean bytes from one sampled birth to the next. Chosen: each input has several. */
#define GAP 512u

static uint32_t site_now;
static const void *sampled_now[SLOTS + 1]; /* those that live */

bool tcl_tracking(void) {
    return true;
}
uint32_t tcl_small_site(void *return_address, void *frame_address) {
    (void)return_address, (void)frame_address;
    return site_now;
}
/* A site is not of one call here: calls cannot be known again. */
_Atomic uint32_t tcl_calls_forgotten;
bool tcl_call_learn(uintptr_t return_address, uintptr_t frame, struct tcl_call *call) {
    (void)return_address, (void)frame, (void)call;
    return false;
}
int64_t tcl_small_gap(uint64_t *random) {
    *random = *random * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
    *random |= 1;
    return (int64_t)(*random >> 33) % (2 * GAP) + 1;
}
bool tcl_small_born(const void *p, size_t bytes, uint32_t site) {
    MUST(bytes > 0 && site == site_now);
    for (int i = 0; i <= SLOTS; i++)
        MUST(sampled_now[i] != p);
    int free = 0;
    while (sampled_now[free])
        MUST(++free <= SLOTS);
    sampled_now[free] = p;
    return site % 2;
}
void tcl_small_died(const void *p) {
    int at = 0;
    while (sampled_now[at] != p)
        MUST(++at <= SLOTS);
    sampled_now[at] = NULL;
}
void tcl_remark(enum tcl_remark remark) {
    MUST(remark == TCL_REMARK_MIXED && site_now % 2);
}

struct object {
    uint8_t *p;
    size_t bytes;
    uint8_t id;
};
static struct object objects[SLOTS];
static size_t live;
static uint8_t last_id;

/* Sizes around the limits of the layers, and any. */
static size_t take_size(struct input *in) {
    static const size_t around[] = {16, 1024, 4096, 8192, 65536, 2 << 20, 4 << 20, 64 << 20};
    uint8_t kind = take_u8(in);
    uint16_t more = take_u16(in);
    if (kind < 128)
        return more >> kind % 16;
    if (kind < 240)
        return around[kind % 8] + more % 64 - 32;
    return kind < 250 ? (size_t)more << 8 : SIZE_MAX - more;
}

/* ---- The model: contents --------------------------------------------------------------------- */

static size_t step_of(size_t bytes) {
    return bytes < 8192 ? 1 : 509; /* samples of a large one */
}

static void fill(const struct object *o) {
    for (size_t i = 0; i < o->bytes; i += step_of(o->bytes))
        o->p[i] = (uint8_t)(o->id + i);
    if (o->bytes)
        o->p[o->bytes - 1] = (uint8_t)(o->id * 3);
}

static void check(const struct object *o, size_t bytes) {
    for (size_t i = 0; i < bytes; i += step_of(o->bytes))
        MUST(o->p[i] == (uint8_t)(i == o->bytes - 1 ? o->id * 3 : o->id + i));
}

static void drop(struct object *o) {
    if (!o->p)
        return;
    check(o, o->bytes);
    live -= o->bytes;
    tested_free(o->p);
    *o = (struct object){0};
}

/* Takes an object that was made, of no more than there may be. */
static void keep(struct object *o, uint8_t *p, size_t bytes, size_t align) {
    if (!p) {
        MUST(bytes > PTRDIFF_MAX || align > PTRDIFF_MAX / 2);
        return;
    }
    MUST((uintptr_t)p % align == 0 && tested_usable_size(p) >= bytes);
    *o = (struct object){p, bytes, ++last_id};
    live += bytes;
    fill(o);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static void make(struct object *o, struct input *in) {
    size_t bytes = take_size(in);
    if (bytes <= PTRDIFF_MAX && live + bytes > LIVE_MAX)
        return;
    keep(o, tested_malloc(bytes), bytes, 16);
}

static void make_zeroed(struct object *o, struct input *in) {
    size_t bytes = take_size(in), each = take_u8(in) % 8 + 1, whole = 0;
    bool fits = !__builtin_mul_overflow(bytes, each, &whole);
    if (fits && whole <= PTRDIFF_MAX && live + whole > LIVE_MAX)
        return;
    uint8_t *p = tested_calloc(bytes, each);
    MUST(fits || !p);
    for (size_t i = 0; p && i < whole; i += step_of(whole))
        MUST(!p[i]);
    keep(o, p, fits ? whole : SIZE_MAX, 16);
}

static void make_aligned(struct object *o, struct input *in) {
    size_t bytes = take_size(in), align = (size_t)1 << take_u8(in) % 24;
    if (bytes <= PTRDIFF_MAX && live + bytes + align > LIVE_MAX)
        return;
    void *p = NULL;
    uint8_t how = take_u8(in) % 5;
    if (how == 0)
        MUST(!tested_posix_memalign(&p, align < 8 ? 8 : align, bytes) || bytes > PTRDIFF_MAX);
    else if (how == 1)
        p = tested_aligned_alloc(align, bytes);
    else if (how == 2)
        p = tested_memalign(align, bytes);
    else
        p = how == 3 ? tested_valloc(bytes) : tested_pvalloc(bytes);
    keep(o, p, bytes, how < 3 ? align < 8 ? 8 : align : TCL_PAGE);
}

static void resize_one(struct object *o, struct input *in) {
    size_t bytes = take_size(in);
    if (bytes <= PTRDIFF_MAX && live + bytes > LIVE_MAX)
        return;
    struct object old = *o;
    if (old.p)
        check(&old, old.bytes);
    uint8_t *p = tested_realloc(old.p, bytes);
    if (!p && bytes > PTRDIFF_MAX)
        return; /* what was there is still there */
    MUST(p || (!bytes && old.p));
    *o = (struct object){p, old.bytes, old.id};
    if (old.p)
        check(o, !p ? 0 : bytes < old.bytes ? bytes : old.bytes);
    live -= old.bytes;
    *o = (struct object){0};
    if (p)
        keep(o, p, bytes, 16);
}

static void step(struct input *in) {
    uint8_t which = take_u8(in);
    site_now = which / 8 * SITES / 32;
    which %= 8;
    struct object *o = &objects[take_u8(in) % SLOTS];
    if (which < 4)
        drop(o);
    switch (which) {
    case 0:
    case 1:
        return make(o, in);
    case 2:
        return make_zeroed(o, in);
    case 3:
        return make_aligned(o, in);
    case 4:
    case 5:
        return resize_one(o, in);
    case 6:
        return drop(o);
    default:
        tcl_pages_purge(take_u8(in) % 2);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static bool is_started;
    struct input in = {data, bytes};
    if (!is_started) {
        tcl_heap_init();
        is_started = true;
    }
    while (in.left)
        step(&in);
    for (int i = 0; i < SLOTS; i++)
        drop(&objects[i]);
    MUST(!live);
    for (int i = 0; i <= SLOTS; i++)
        MUST(!sampled_now[i]);
    return 0;
}
