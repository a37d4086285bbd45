/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * traits.c: allocation by traits of the object.
 * In: calls of tiercel.h. Out: objects, born in the arena of a space. Knows nothing of nodes: the
 * control page maps spaces to arenas.
 *
 * A stated space is preferred to the plan. Otherwise the strategy resolves hints to a space, which
 * is used where the plan has no row for the site.
 */
#define TIERCEL_RUNTIME
#include "../../include/tiercel.h"
#include "../alloc/heap.h"
#include "../track/session.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* A sequence lock over a strategy and its context: odd while they change. A reader that sees a
 * change uses the default strategy. */
static _Atomic uint32_t strategy_version;
static tiercel_strategy *_Atomic strategy;
static void *_Atomic strategy_context;

static enum tiercel_space default_strategy(const struct tiercel_traits *traits) {
    if (traits->bound == TIERCEL_LATENCY_BOUND)
        return TIERCEL_LOW_LATENCY;
    if (traits->bound == TIERCEL_BANDWIDTH_BOUND)
        return TIERCEL_HIGH_BANDWIDTH;
    switch (traits->pattern) {
    case TIERCEL_RANDOM:
    case TIERCEL_POINTER_CHASE:
        return TIERCEL_LOW_LATENCY;
    case TIERCEL_SEQUENTIAL:
    case TIERCEL_STRIDED:
        return TIERCEL_HIGH_BANDWIDTH;
    default:
        return TIERCEL_ANY_SPACE;
    }
}

static enum tiercel_space space_of(size_t bytes, const struct tiercel_traits *traits) {
    uint32_t before = atomic_load(&strategy_version);
    tiercel_strategy *own = atomic_load(&strategy);
    void *context = atomic_load(&strategy_context);
    bool whole = before % 2 == 0 && atomic_load(&strategy_version) == before;
    return own && whole ? own(bytes, traits, context) : default_strategy(traits);
}

static unsigned arena_of(enum tiercel_space space) {
    if (space < TIERCEL_HIGH_BANDWIDTH || space > TIERCEL_LARGE_CAPACITY || !tcl_attached())
        return TCL_ARENA_UNKNOWN;
    return __atomic_load_n(&tcl_control()->space_arena[space - TIERCEL_HIGH_BANDWIDTH],
                           __ATOMIC_RELAXED);
}

/* In a program with its own malloc, whose free must accept the memory. */
static void *foreign_memalign(size_t align, size_t bytes) {
    int (*their_memalign)(void **, size_t, size_t);
    void *found = dlsym(RTLD_DEFAULT, "posix_memalign"), *memory = NULL;
    memcpy(&their_memalign, &found, sizeof(found));
    align = align < sizeof(long double) ? sizeof(long double) : align;
    return their_memalign && their_memalign(&memory, align, bytes) == 0 ? memory : NULL;
}

/* Sets the arena of this thread's births, until `clear_preference`. */
static void prefer_arena(size_t bytes, const struct tiercel_traits *traits) {
    unsigned arena = TCL_ARENA_UNKNOWN;
    if (!tcl_tracking())
        return;
    tcl_session_want();
    if (traits->space != TIERCEL_ANY_SPACE)
        arena = arena_of(traits->space);
    tcl_birth_prefer(arena, arena == TCL_ARENA_UNKNOWN ? arena_of(space_of(bytes, traits))
                                                       : TCL_ARENA_UNKNOWN);
}

static void clear_preference(void) {
    tcl_birth_prefer(TCL_ARENA_UNKNOWN, TCL_ARENA_UNKNOWN);
}

static void *allocate(size_t align, size_t bytes, const struct tiercel_traits *traits,
                      struct caller caller) {
    if (traits)
        prefer_arena(bytes, traits);
    void *memory =
        tcl_is_our_malloc() ? tcl_allocate(bytes, align, caller) : foreign_memalign(align, bytes);
    if (traits)
        clear_preference();
    return memory;
}

#define CALLER ((struct caller){__builtin_return_address(0), __builtin_dwarf_cfa()})

TCL_EXPORT void *tiercel_alloc(size_t bytes, const struct tiercel_traits *traits) {
    return allocate(1, bytes, traits, CALLER);
}

TCL_EXPORT void *tiercel_aligned_alloc(size_t align, size_t bytes,
                                       const struct tiercel_traits *traits) {
    if (align == 0 || (align & (align - 1)) != 0)
        return NULL;
    return allocate(align, bytes, traits, CALLER);
}

TCL_EXPORT void tiercel_free(void *memory) {
    void (*any_free)(void *);
    void *found = tcl_is_our_malloc() ? NULL : dlsym(RTLD_DEFAULT, "free");
    memcpy(&any_free, &found, sizeof(found));
    if (any_free)
        any_free(memory);
    else
        free(memory);
}

/* ---- With a space as context, for NumPy and memkind ------------------------------------------ */

static struct tiercel_traits traits_of(const void *space) {
    return (struct tiercel_traits){.space = (enum tiercel_space)(uintptr_t)space};
}

TCL_EXPORT void *tiercel_space_malloc(void *space, size_t bytes) {
    struct tiercel_traits traits = traits_of(space);
    return allocate(1, bytes, &traits, CALLER);
}

TCL_EXPORT void *tiercel_space_calloc(void *space, size_t count, size_t each) {
    struct tiercel_traits traits = traits_of(space);
    size_t bytes;
    if (__builtin_mul_overflow(count, each, &bytes))
        return NULL;
    prefer_arena(bytes, &traits);
    bool ours = tcl_is_our_malloc();
    void *memory = ours ? tcl_allocate_zeroed(count, each, CALLER) : foreign_memalign(1, bytes);
    if (memory && !ours)
        memset(memory, 0, bytes);
    clear_preference();
    return memory;
}

TCL_EXPORT void *tiercel_space_realloc(void *space, void *memory, size_t bytes) {
    struct tiercel_traits traits = traits_of(space);
    void *(*their_realloc)(void *, size_t);
    void *found = tcl_is_our_malloc() ? NULL : dlsym(RTLD_DEFAULT, "realloc");
    memcpy(&their_realloc, &found, sizeof(found));
    if (their_realloc)
        return their_realloc(memory, bytes);
    prefer_arena(bytes, &traits);
    void *to = tcl_resize(memory, bytes, CALLER);
    clear_preference();
    return to;
}

TCL_EXPORT void tiercel_space_free(void *space, void *memory, size_t bytes) {
    (void)space, (void)bytes;
    tiercel_free(memory);
}

TCL_EXPORT void tiercel_set_strategy(tiercel_strategy *own, void *context) {
    atomic_fetch_add(&strategy_version, 1);
    atomic_store(&strategy, own);
    atomic_store(&strategy_context, context);
    atomic_fetch_add(&strategy_version, 1);
}

TCL_EXPORT int tiercel_is_hosted(void) {
    tcl_session_want();
    return tcl_attached();
}
