/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * heap_home.c: large objects that are born in memory of dead ones: OS pages that lie on another
 * node than a fresh object would get are released, so that the first touch places them anew.
 * In: a run before its birth, and where the kernel says that it lies. Out: that run, of which some
 * OS pages are no longer resident, or a better one. Knows nothing of budgets or of why memory lies
 * where it does.
 *
 * OS pages stay where an earlier life had them: on a slow node, because the fast one was full at
 * that time, or because they were moved. First touch in fresh memory would do better as soon as
 * there is room. The room may be in the biggest dead run, which is then used instead. Otherwise a
 * trial shows whether there is any: a few OS pages are released and touched. They cost what they
 * would cost in fresh memory; where the trial fails it is not repeated at once.
 */
#include "heap.h"
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

/* OS pages that are looked up of each run, evenly spread. Chosen: at some 0.1 us each they cost
 * less than a hundredth of the first touches of the smallest run that is looked at. */
#define SAMPLES 16
/* OS pages that a trial touches: 64 KiB, what a node near its watermark has left by chance. Chosen,
 * not measured. */
#define TRIAL 16
/* OS pages looked up by one call, whose results are on the stack: 3 KiB. */
#define LOOKED_UP_MAX 256
/* After each trial in vain twice as many births go without one, up to 2^8. Chosen, not measured. */
#define BACKOFF_MAX 8

static _Atomic uint32_t backoff; /* log2 of the births that go without a trial next */
static _Atomic uint32_t to_skip; /* of them, those that are left */
static _Atomic bool is_refused;  /* the kernel does not say where memory lies */

/* Asks for the nodes of OS pages; a negative one has no memory, or cannot be known. */
static bool look_up_nodes(void *const *pages, int *nodes, size_t count) {
    long result = syscall(SYS_move_pages, 0, count, pages, NULL, nodes, 0);
    if (tcl_unlikely(result != 0))
        atomic_store_explicit(&is_refused, true, memory_order_relaxed);
    return result == 0;
}

static inline bool is_elsewhere(int node, uint64_t wanted) {
    return node >= 0 && (node >= 64 || !(wanted >> node & 1));
}

/* True when some of the samples lie elsewhere. */
static bool lies_elsewhere(uintptr_t start, size_t pages, uint64_t wanted) {
    void *addresses[SAMPLES];
    int nodes[SAMPLES];
    for (size_t i = 0; i < SAMPLES; i++)
        addresses[i] = (void *)(start + ((pages * i / SAMPLES) << PAGE_SHIFT));
    if (!look_up_nodes(addresses, nodes, SAMPLES))
        return false;
    for (size_t i = 0; i < SAMPLES; i++)
        if (is_elsewhere(nodes[i], wanted))
            return true;
    return false;
}

/* Looks up to LOOKED_UP_MAX OS pages up and releases those that lie elsewhere, neighbours in one
 * call. */
static bool release_batch(uintptr_t start, size_t pages, uint64_t wanted) {
    void *addresses[LOOKED_UP_MAX];
    int nodes[LOOKED_UP_MAX];
    for (size_t i = 0; i < pages; i++)
        addresses[i] = (void *)(start + (i << PAGE_SHIFT));
    if (!look_up_nodes(addresses, nodes, pages))
        return false;
    for (size_t i = 0, first; i < pages; i++) {
        for (first = i; i < pages && is_elsewhere(nodes[i], wanted); i++) {
        }
        if (i > first && tcl_os_clear(start + (first << PAGE_SHIFT), (i - first) << PAGE_SHIFT))
            return false; /* locked memory stays where it is */
    }
    return true;
}

/* Whether OS pages that are touched now come from one of the wanted nodes. */
static bool trial_succeeds(uintptr_t start, uint64_t wanted) {
    void *addresses[TRIAL];
    int nodes[TRIAL];
    if (tcl_os_clear(start, TRIAL << PAGE_SHIFT) != 0)
        return false;
    for (size_t i = 0; i < TRIAL; i++) {
        addresses[i] = (void *)(start + (i << PAGE_SHIFT));
        *(volatile char *)addresses[i] = 0;
    }
    if (!look_up_nodes(addresses, nodes, TRIAL))
        return false;
    for (size_t i = 0; i < TRIAL; i++)
        if (is_elsewhere(nodes[i], wanted))
            return false;
    return true;
}

static bool may_try(void) {
    uint32_t left = atomic_load_explicit(&to_skip, memory_order_relaxed);
    /* Threads that race skip one birth less. */
    if (left)
        atomic_store_explicit(&to_skip, left - 1, memory_order_relaxed);
    return left == 0;
}

static void note_trial(bool succeeded) {
    uint32_t log = atomic_load_explicit(&backoff, memory_order_relaxed);
    log = succeeded ? 0 : log < BACKOFF_MAX ? log + 1 : log;
    atomic_store_explicit(&backoff, log, memory_order_relaxed);
    atomic_store_explicit(&to_skip, (1u << log) - 1, memory_order_relaxed);
}

/* Nodes that memory of arena k should be on; 0: no matter. */
static uint64_t wanted_nodes(unsigned k) {
    int node = tcl_arena_node(k);
    if (node >= 0)
        return node < 64 ? 1ull << node : 0;
    return node == TCL_NODE_NONE ? tcl_fast_nodes() : 0;
}

/* A dead run that is large enough and lies right, as far as the biggest one is; NULL: there is
 * none.
 */
static struct run *take_dead(unsigned k, size_t pages, uint64_t wanted) {
    heap_lock(&tcl_heap_lock);
    struct run *run = tcl_pages_take_biggest(k, pages);
    heap_unlock(&tcl_heap_lock);
    if (!run || !lies_elsewhere(page_address(number_of(run)), pages, wanted))
        return run;
    heap_lock(&tcl_heap_lock);
    tcl_pages_give(run);
    heap_unlock(&tcl_heap_lock);
    return NULL;
}

/* Releases what lies elsewhere if a trial shows that fresh memory would not. */
static void place_anew(uintptr_t start, size_t pages, uint64_t wanted) {
    bool succeeds = trial_succeeds(start, wanted);
    note_trial(succeeds);
    for (size_t at = TRIAL; succeeds && at < pages; at += LOOKED_UP_MAX) {
        size_t batch = pages - at < LOOKED_UP_MAX ? pages - at : LOOKED_UP_MAX;
        succeeds = release_batch(start + (at << PAGE_SHIFT), batch, wanted);
    }
}

struct run *tcl_home_choose(struct run *run, size_t pages) {
    unsigned k = tcl_arena_of_page(number_of(run));
    uint64_t wanted = wanted_nodes(k);
    size_t dirty = run->touched < pages ? run->touched : pages;
    if (!wanted || dirty < HOME_PAGES || tcl_vmem_is_backing() ||
        atomic_load_explicit(&is_refused, memory_order_relaxed) || tcl_is_filtered())
        return run;
    tcl_assert_debug(run->state == RUN_CACHED && dirty >= SAMPLES && dirty >= TRIAL);
    int saved = errno;
    uintptr_t start = page_address(number_of(run));
    if (may_try() && lies_elsewhere(start, dirty, wanted)) {
        struct run *dead = run->total == pages ? take_dead(k, pages, wanted) : NULL;
        if (dead) {
            heap_lock(&tcl_heap_lock);
            tcl_pages_give(run);
            heap_unlock(&tcl_heap_lock);
            run = dead;
        } else {
            place_anew(start, dirty, wanted);
        }
    }
    errno = saved;
    return run;
}
