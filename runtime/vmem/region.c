/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * region.c: the vregions of tiercel.h, and what a fork does with them.
 * In: calls of the program, forks. Out: mappings of places, requests for moves. Knows nothing of
 * how a vpage moves, or where segments come from.
 *
 * fork. The kernel copies private memory on write, but not shared memory; so before a fork every
 * vregion becomes a private mapping of the same memfd, one mremap for each run. The memfd is not
 * written from then on (its segment is frozen): parent and child both see what was written before,
 * and later writes of either go to private copies. A write of another thread comes before the
 * mremap or after it, never between. Later moves undo this: they copy what the process sees to new
 * vpages and map those shared again.
 *
 * vfork and posix_spawn share the address space until exec and change nothing. A child made by a
 * raw system call runs no fork handler and would share its parent's vregions; MADV_DONTFORK keeps
 * them from it, which the handlers of a fork lift.
 */
#define TIERCEL_RUNTIME
#include "region.h"
#include "../../include/tiercel.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define HUGE_SHIFT 26  /* linux/mman.h: log2 of an OS page's size in mmap's flags */
#define HUGE_MASK 0x3f /* MAP_HUGE_MASK */

/* Chosen, not measured: bounds the wait, as a mover with a higher priority than the thread that
 * serves touches would yield to it for ever. */
#define YIELDS_MAX 1000

size_t vmem_twin_bytes, vmem_twin_limit;

struct vmem_region vmem_regions[VMEM_REGIONS_MAX];
static unsigned region_count;          /* slots ever used */
static _Atomic unsigned program_slots; /* slots ever used by vregions of the program's own */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t signals_before;          /* the mask of who holds the lock, as the kernel has it */
static _Atomic unsigned threads_waiting; /* for the lock */
static _Atomic unsigned touches_waiting; /* likewise, which a mover would take again at once */
static bool is_started;

static int fail(int error) {
    errno = error;
    return -1;
}

/* Who holds the lock is not interrupted: a signal handler may fork, or free memory. */
static void take_lock(void) {
    uint64_t all = ~0ull, before;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof(all));
    if (pthread_mutex_trylock(&lock)) {
        atomic_fetch_add(&threads_waiting, 1);
        pthread_mutex_lock(&lock);
        atomic_fetch_sub(&threads_waiting, 1);
    }
    signals_before = before;
}

/* Between the handlers of a fork the forking thread holds it already. */
void vmem_lock(void) {
    if (tcl_in_fork)
        return;
    for (int i = 0; i < YIELDS_MAX && atomic_load_explicit(&touches_waiting, memory_order_relaxed);
         i++)
        sched_yield();
    take_lock();
}

void vmem_lock_for_touch(void) {
    atomic_fetch_add(&touches_waiting, 1);
    take_lock();
    atomic_fetch_sub(&touches_waiting, 1);
}

void vmem_unlock(void) {
    if (tcl_in_fork)
        return;
    uint64_t before = signals_before;
    pthread_mutex_unlock(&lock);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof(before));
}

bool vmem_is_awaited(void) {
    return atomic_load_explicit(&threads_waiting, memory_order_relaxed) > 0;
}

unsigned vmem_region_slots(void) {
    return region_count;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static size_t table_bytes(size_t count) {
    return (2 * count * sizeof(vmem_place) + TCL_PAGE - 1) & -(size_t)TCL_PAGE;
}

/* Homes and twins in one mapping. */
static bool make_tables(struct vmem_region *region, size_t count) {
    void *at = tcl_os_mmap(NULL, table_bytes(count), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return false;
    region->home = at;
    region->twin = region->home + count;
    return true;
}

static struct vmem_region *free_slot(void) {
    unsigned slot = 0;
    while (slot < region_count && vmem_regions[slot].start)
        slot++;
    if (slot == VMEM_REGIONS_MAX)
        return NULL;
    if (slot == region_count)
        region_count++;
    return &vmem_regions[slot];
}

bool vmem_is_locked(void) {
    return tcl_is_held(&lock);
}

struct vmem_region *vmem_new_region(size_t count) {
    tcl_assert_debug(vmem_is_locked() && count > 0);
    struct vmem_region *region = free_slot();
    return region && make_tables(region, count) ? region : NULL;
}

static size_t count_of(const struct vmem_region *region) {
    return region->bytes >> region->shift;
}

struct vmem_region *vmem_region_over(uintptr_t start, size_t bytes) {
    tcl_assert_debug(vmem_is_locked());
    struct vmem_region *first = NULL;
    for (unsigned i = 0; i < region_count; i++) {
        struct vmem_region *region = &vmem_regions[i];
        if (region->start && !region->is_heap && start < region->start + region->bytes &&
            region->start < start + bytes && (!first || region->start < first->start))
            first = region;
    }
    return first;
}

/* ---- Vpages of a vregion --------------------------------------------------------------------- */

void vmem_drop_twin(struct vmem_region *region, size_t first, size_t count) {
    tcl_assert_debug(vmem_is_locked());
    tcl_assert_debug(first + count <= count_of(region));
    for (size_t done = 0, run; done < count; done += run) {
        vmem_place twin = region->twin[first + done];
        run = vmem_run(region, region->twin, first + done, count - done);
        if (!twin)
            continue;
        size_t bytes = run * vmem_vpage(region);
        vmem_give(twin, bytes);
        tcl_assert_debug(bytes <= vmem_twin_bytes);
        vmem_twin_bytes -= bytes;
        memset(&region->twin[first + done], 0, run * sizeof(vmem_place));
    }
}

bool vmem_drop_twins(void) {
    tcl_assert_debug(vmem_is_locked());
    bool was_any = vmem_twin_bytes > 0;
    for (unsigned i = 0; i < region_count; i++)
        if (vmem_regions[i].start && !vmem_regions[i].is_heap)
            vmem_drop_twin(&vmem_regions[i], 0, count_of(&vmem_regions[i]));
    return was_any;
}

static void free_homes(struct vmem_region *region, size_t first, size_t count) {
    vmem_drop_twin(region, first, count);
    for (size_t done = 0, run; done < count; done += run) {
        vmem_place home = region->home[first + done];
        run = vmem_run(region, region->home, first + done, count - done);
        if (home)
            vmem_give(home, run * vmem_vpage(region));
        memset(&region->home[first + done], 0, run * sizeof(vmem_place));
    }
}

/* Takes places for all its vpages, in as few runs as possible. */
static bool back(struct vmem_region *region, size_t first, size_t count) {
    size_t vpage = vmem_vpage(region);
    vmem_place home = vmem_take(region->node, count * vpage, vpage, true);
    if (!home && errno == ENOMEM && vmem_drop_twins())
        home = vmem_take(region->node, count * vpage, vpage, true);
    if (!home)
        return errno == ENOMEM && count > 1 && back(region, first, count / 2) &&
               back(region, first + count / 2, count - count / 2);
    for (size_t i = 0; i < count; i++)
        region->home[first + i] = home + i * (vpage / TCL_PAGE);
    return true;
}

/* Maps the homes. The program does not know the addresses yet. */
static bool map(struct vmem_region *region, bool populate) {
    size_t vpage = vmem_vpage(region), count = count_of(region);
    for (size_t first = 0, run; first < count; first += run) {
        run = vmem_run(region, region->home, first, count - first);
        char *at = (char *)region->start + first * vpage;
        if (tcl_os_mremap(vmem_shared(region->home[first]), 0, run * vpage,
                          MREMAP_MAYMOVE | MREMAP_FIXED, at) != at)
            return false;
    }
    char *start = (char *)region->start;
    if (region->prot != (PROT_READ | PROT_WRITE) &&
        syscall(SYS_mprotect, start, region->bytes, region->prot))
        return false;
    syscall(SYS_madvise, start, region->bytes, MADV_DODUMP);
    syscall(SYS_madvise, start, region->bytes, MADV_DONTFORK);
    /* Memory of a pool is allocated already; filling the page table at once costs less than half of
     * what its faults would (docs/pools.md). */
    bool is_there = vmem_segments[vmem_segment_of(region->home[0])].number && vpage > TCL_PAGE;
    if ((populate || is_there) && syscall(SYS_madvise, start, region->bytes, MADV_POPULATE_WRITE) &&
        errno == ENOMEM)
        return false;
    return true;
}

/* ---- Fork ------------------------------------------------------------------------------------ */

static bool map_private(char *at, vmem_place home, size_t bytes, int prot) {
    char *from = vmem_private(home);
    int usual = PROT_READ | PROT_WRITE, flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    bool is_ready = prot == usual || !syscall(SYS_mprotect, from, bytes, prot);
    void *got = is_ready ? tcl_os_mremap(from, bytes, bytes, flags, at) : MAP_FAILED;
    if (prot != usual)
        syscall(SYS_mprotect, from, bytes, usual);
    if (got != at) /* out of mappings: the child does without rather than share */
        syscall(SYS_madvise, at, bytes, MADV_DONTFORK);
    return got == at;
}

/* Leaves out what the program has unmapped or replaced by itself. */
static void make_private(struct vmem_region *region, size_t first, size_t count) {
    size_t bytes = count * vmem_vpage(region), step = vmem_vpage(region) / TCL_PAGE;
    char *start = (char *)region->start + first * vmem_vpage(region);
    vmem_place home = region->home[first];
    bool is_so, is_done = true;
    for (size_t done = 0, part; done < bytes; done += part) {
        vmem_place here = home + done / TCL_PAGE;
        part = vmem_query_mapping((uintptr_t)start + done, bytes - done, here, VMEM_ANY_RIGHTS,
                                  &is_so);
        if (is_so)
            is_done &= map_private(start + done, here, part, region->prot);
    }
    region->is_private &= is_done;
    for (size_t i = 0; is_done && i < count; i++)
        region->home[first + i] = (home + i * step) | VMEM_FORKED;
}

void tcl_vmem_before_fork(void) {
    vmem_lock(); /* always: a child must not inherit it from another thread */
    if (!vmem_is_any_segment())
        return; /* private memory is the kernel's to fork */
    vmem_drop_twins();
    vmem_query_open();
    for (unsigned i = 0; i < region_count; i++) {
        struct vmem_region *region = &vmem_regions[i];
        size_t count = region->start && !region->is_private ? count_of(region) : 0;
        region->is_private = true;
        for (size_t first = 0, run; first < count; first += run) {
            run = vmem_run(region, region->home, first, count - first);
            if (region->home[first] && !(region->home[first] & VMEM_FORKED))
                make_private(region, first, run);
        }
    }
    vmem_query_close();
    vmem_freeze();
}

void tcl_vmem_after_fork_parent(void) {
    vmem_unlock();
}

void tcl_vmem_after_fork_child(void) {
    vmem_copy_forget();
    atomic_store(&threads_waiting, 0);
    atomic_store(&touches_waiting, 0);
    vmem_close_windows();
    vmem_track_forget();
    vmem_forget_touches();
    for (unsigned i = 0; i < region_count; i++)
        vmem_regions[i].is_on_touch = false;
    vmem_forget_server();
    vmem_forget_threads();
    vmem_unlock();
}

/* ---- Changes of mappings by the program ------------------------------------------------------ */

/* Cuts the region in two at an inner vpage; false: out of slots. */
static bool split(struct vmem_region *region, size_t at) {
    size_t count = count_of(region);
    tcl_assert_debug(vmem_is_locked() && at > 0 && at < count);
    struct vmem_region *tail = free_slot();
    if (!tail || !make_tables(tail, count - at))
        return false;
    vmem_place *home = tail->home, *twin = tail->twin;
    *tail = *region;
    tail->home = home;
    tail->twin = twin;
    memcpy(home, region->home + at, (count - at) * sizeof(*home));
    memcpy(twin, region->twin + at, (count - at) * sizeof(*twin));
    tail->start += at << region->shift;
    tail->bytes -= at << region->shift;
    region->bytes = at << region->shift;
    return true;
}

/* Makes the part of a region in [start, end) a region of its own; NULL and errno: the bounds cut a
 * vpage, or there are too many regions. */
static struct vmem_region *isolate(struct vmem_region *region, uintptr_t start, uintptr_t end) {
    size_t vpage = vmem_vpage(region);
    uintptr_t from = start > region->start ? start : region->start;
    uintptr_t region_end = region->start + region->bytes, to = end < region_end ? end : region_end;
    bool fits = (from - region->start) % vpage == 0 && (to - region->start) % vpage == 0;
    errno = fits ? ENOMEM : EINVAL;
    if (!fits || (to < region_end && !split(region, (to - region->start) >> region->shift)))
        return NULL;
    if (from > region->start && !split(region, (from - region->start) >> region->shift))
        return NULL;
    return vmem_region_over(from, 1);
}

/* Drops places that the program has unmapped or remapped by itself without freeing them: they may
 * still be mapped elsewhere. */
static void disown_unmapped(struct vmem_region *region) {
    size_t vpage = vmem_vpage(region);
    vmem_query_open();
    for (size_t i = 0, run; i < count_of(region); i += run) {
        uintptr_t at = region->start + i * vpage;
        run = vmem_run(region, region->home, i, count_of(region) - i);
        if (region->home[i] &&
            !vmem_is_mapped_as(at, run * vpage, region->home[i], VMEM_ANY_RIGHTS))
            memset(&region->home[i], 0, run * sizeof(vmem_place));
    }
    vmem_query_close();
}

static void remove_region(struct vmem_region *region) {
    free_homes(region, 0, count_of(region));
    tcl_os_munmap(region->home, table_bytes((size_t)(region->twin - region->home)));
    *region = (struct vmem_region){0};
}

bool tcl_vmem_any(uintptr_t start, size_t bytes) {
    if (tcl_likely(!atomic_load_explicit(&program_slots, memory_order_relaxed)))
        return false;
    vmem_lock();
    bool is_any = vmem_region_over(start, bytes) != NULL;
    vmem_unlock();
    return is_any;
}

bool tcl_vmem_cut(uintptr_t start, size_t bytes) {
    struct vmem_region *region;
    bool is_cut = true;
    vmem_lock();
    while (is_cut && (region = vmem_region_over(start, bytes))) {
        region = isolate(region, start, start + bytes);
        is_cut = region != NULL;
        if (is_cut) { /* unmapped before it is freed, and may be reused */
            disown_unmapped(region);
            tcl_os_mmap((void *)region->start, region->bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
            remove_region(region);
        }
    }
    vmem_unlock();
    return is_cut;
}

int tcl_vmem_protect(uintptr_t start, size_t bytes, int prot) {
    int failed = 0;
    uintptr_t at = start, end = start + bytes;
    struct vmem_region *region;
    vmem_lock();
    while (!failed && at < end && (region = vmem_region_over(at, end - at))) {
        region = isolate(region, start, end);
        failed = region ? 0 : -1;
        if (region)
            region->prot = prot;
        at = region ? region->start + region->bytes : end;
    }
    if (!failed)
        failed = (int)syscall(SYS_mprotect, start, bytes, prot);
    vmem_unlock();
    return failed;
}

/* ---- tiercel.h ------------------------------------------------------------------------------- */

/* Once: shadows may take a sixteenth of the memory. Chosen, not measured. */
static void start(void) {
    struct sysinfo system;
    if (is_started)
        return;
    is_started = true;
    if (!sysinfo(&system))
        vmem_twin_limit = (size_t)system.totalram * system.mem_unit / 16;
}

static int node_here(void) {
    unsigned node = 0;
    return syscall(SYS_getcpu, NULL, &node, NULL) ? 0 : (int)node;
}

/* An aligned range without access; MAP_FIXED: the one at `addr`. */
static void *reserve(void *addr, size_t bytes, size_t vpage, int flags) {
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (flags & MAP_FIXED)
        return (uintptr_t)addr % vpage ? (errno = EINVAL, MAP_FAILED)
                                       : mmap(addr, bytes, PROT_NONE, how | MAP_FIXED, -1, 0);
    char *at = mmap(NULL, bytes + vpage, PROT_NONE, how, -1, 0);
    if (at == MAP_FAILED)
        return at;
    size_t head = -(uintptr_t)at % vpage;
    if (head)
        munmap(at, head);
    munmap(at + head + bytes, vpage - head);
    return at + head;
}

/* Leaves its vpages without a home until they are touched. */
static bool fill_on_touch(struct vmem_region *region) {
    region->node = TCL_NODE_NONE;
    region->is_on_touch = !syscall(SYS_mprotect, region->start, region->bytes, region->prot) &&
                          vmem_watch_touches(region->start, region->bytes);
    return region->is_on_touch;
}

/* Fills a free slot; under the lock. */
static int add_region(void *at, size_t bytes, int prot, unsigned shift, bool populate,
                      bool on_touch) {
    struct vmem_region *region = vmem_new_region(bytes >> shift);
    if (!region)
        return ENOMEM;
    program_slots++;
    region->start = (uintptr_t)at;
    region->bytes = bytes;
    region->prot = prot;
    region->shift = (uint8_t)shift;
    if (on_touch && fill_on_touch(region))
        return 0;
    region->node = node_here();
    errno = ENOMEM;
    if (back(region, 0, bytes >> shift) && map(region, populate))
        return 0;
    int error = errno;
    remove_region(region);
    return error;
}

TCL_EXPORT void *tiercel_vregion_register(void *addr, size_t bytes, int prot, int flags, int fd,
                                          off_t offset) {
    unsigned shift = (unsigned)flags >> HUGE_SHIFT & HUGE_MASK;
    shift = shift ? shift : 12;
    if ((flags & (MAP_PRIVATE | MAP_ANONYMOUS)) != (MAP_PRIVATE | MAP_ANONYMOUS))
        return mmap(addr, bytes, prot, flags & ~TIERCEL_MAP_USERFAULT, fd, offset);
    size_t vpage = (size_t)1 << shift;
    if ((shift != 12 && shift != 16 && shift != 21) || !bytes || bytes > PTRDIFF_MAX - vpage) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    bytes = (bytes + vpage - 1) & -vpage;
    void *at = reserve(addr, bytes, vpage, flags);
    if (at == MAP_FAILED)
        return at;
    bool on_touch = flags & TIERCEL_MAP_USERFAULT && vmem_serve_touches();
    vmem_lock();
    start();
    int error = add_region(at, bytes, prot, shift, flags & MAP_POPULATE, on_touch);
    vmem_unlock();
    if (!error)
        return at;
    munmap(at, bytes);
    errno = error;
    return MAP_FAILED;
}

TCL_EXPORT int tiercel_vregion_release(void *addr, size_t bytes) {
    uintptr_t start = (uintptr_t)addr;
    if (!bytes || start % TCL_PAGE || !tcl_vmem_any(start, bytes))
        return fail(EINVAL);
    return munmap(addr, (bytes + TCL_PAGE - 1) & -(size_t)TCL_PAGE);
}

/* Piece by piece, so that other threads do not wait for the lock for long. */
static int each_piece(void *addr, size_t bytes, int node, enum vmem_how how) {
    uintptr_t at = (uintptr_t)addr, end = at + bytes;
    if (!bytes || end < at || node < 0 || node >= VMEM_NODES_MAX)
        return fail(EINVAL);
    while (at < end) {
        vmem_copy_prepare();
        vmem_lock();
        struct vmem_region *region = vmem_region_over(at, 1);
        int error = region ? 0 : EINVAL;
        if (region) {
            size_t first = (at - region->start) >> region->shift, count = count_of(region);
            size_t most = VMEM_PIECE >> region->shift;
            uintptr_t last =
                end < region->start + region->bytes ? end : region->start + region->bytes;
            size_t stop = (last - region->start + vmem_vpage(region) - 1) >> region->shift;
            /* Pieces end at multiples of VMEM_PIECE, as page tables do. */
            size_t until = ((region->start >> region->shift) + first + most) / most * most -
                           (region->start >> region->shift);
            stop = stop < until ? stop : until;
            error = vmem_move(region, first, (stop < count ? stop : count) - first, node, how);
            at = region->start + (stop << region->shift);
        }
        vmem_unlock();
        if (error)
            return fail(error);
    }
    return 0;
}

TCL_EXPORT int tiercel_vregion_replicate(void *addr, size_t bytes, int node) {
    return each_piece(addr, bytes, node, VMEM_REPLICATE);
}

TCL_EXPORT int tiercel_vregion_migrate(void *addr, size_t bytes, int node) {
    return each_piece(addr, bytes, node, VMEM_MIGRATE);
}

TCL_EXPORT int tiercel_vregion_bind(void *addr, size_t bytes, int node) {
    vmem_lock();
    for (unsigned i = 0; i < region_count; i++) {
        struct vmem_region *region = &vmem_regions[i];
        uintptr_t start = (uintptr_t)addr, end = start + bytes;
        if (region->start < start || region->start + region->bytes > end || !region->start)
            continue;
        region->node = node;
        if (region->is_on_touch) /* reserved places, on the old node, that were not touched yet */
            vmem_drop_twin(region, 0, count_of(region));
    }
    vmem_unlock();
    return each_piece(addr, bytes, node, VMEM_MIGRATE);
}

/* Of private memory; ENOENT: not touched yet. */
static int kernel_node(const void *addr) {
    void *at = (void *)((uintptr_t)addr & -(uintptr_t)TCL_PAGE);
    int node = -1;
    if (syscall(SYS_move_pages, 0, 1ul, &at, NULL, &node, 0))
        return fail(errno);
    return node >= 0 ? node : fail(-node);
}

TCL_EXPORT int tiercel_vregion_node(const void *addr) {
    vmem_lock();
    const struct vmem_region *region = vmem_region_over((uintptr_t)addr, 1);
    vmem_place home = 0;
    if (region)
        home = region->home[((uintptr_t)addr - region->start) >> region->shift];
    int node = home ? vmem_node_of(home) : -1;
    vmem_unlock();
    return !region ? fail(EINVAL) : home ? node : kernel_node(addr);
}
