/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * move.c: vpages change their place while the program reads and writes them.
 * In: vpages and a node. Out: the same bytes, there. Knows nothing of why.
 *
 * Copy first, switch later. A mapping T shows place A; `stage` shows place B, and nobody else knows
 * it:
 *
 *   1. T is write tracked.                         every later write to A is noted
 *   2. A is copied to the stage.                   the program runs
 *   3. What was written meanwhile is copied again, until little is, or more than half of what was
 *      copied before: who writes that fast is not caught up with. At most ROUNDS_MAX times.
 *   4. T is held: its entries are dropped, whoever touches it waits (write_tracking.c).
 *   5. What was written since the last copy is copied.
 *   6. The stage is moved over T, by one mremap; who waits is woken.
 *
 * No write is lost. A write to T is one of: before 1, then 2 copies it; between 1 and 4, then its
 * OS page is unprotected when some scan comes. The scan of a round protects it again *before* the
 * copy that follows, so that a write during the copy is found by the next scan; the last scan is
 * that of 4, which sees all that ever went to A, and 5 copies it while nobody can write. Or after
 * 4: then it waits, and finds B after 6. A reader sees A until 4 and B after 6, which hold the same
 * then: it never sees an older value after a newer one. The kernel writes through T as well (system
 * calls into buffers), and is held like the program.
 *
 * A vpage of 2 MiB that the page table has in one entry (a huge OS page) is not broken up for that:
 * its writes are seen as one. Copying ahead ends as soon as one is seen, and then 5 copies all of
 * it while everybody waits, as the kernel does; if none was, nobody waits but for 6.
 *
 * No value is torn. A copy may tear what is being written; but then its OS page is noted and copied
 * anew, at the latest in 5, when nobody writes. The stage is not seen before 6.
 *
 * Only direct memory access goes round the mapping: a device that was told to write to A (O_DIRECT)
 * writes to A. Such buffers must not be vregions that move.
 *
 * Private memory (of the heap, or after a fork) is copied once, in 5: meanwhile who writes waits.
 *
 * In 2 and 3 a device or several threads copy (copy.c); each round ends when all of it is
 * copied. In 5 the mover copies by itself, and waits for no thread that may have lost its CPU.
 *
 * The program may unmap, remap or protect T by a system call that the runtime does not see. So T is
 * looked at before 1, before 4 and before 6 (verify.c), and what is not as it was made is left
 * alone; and T itself is read by the kernel, which then says so. Between the last look and 6 lie
 * two system calls: what is taken away just there is switched all the same. The kernel has no call
 * that does both.
 *
 * Signals are blocked from 4 to 6: a handler in this thread that touches T would wait for itself.
 * No lock of the allocator or of libc is taken: whoever holds one may be waiting in 4.
 *
 * Where nothing can be held, a process with one thread needs no holding: nobody else writes.
 * Otherwise the kernel moves the memory where it stands (mbind), which is slower.
 */
#include "region.h"
#include <errno.h>
#include <linux/mempolicy.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROUNDS_MAX 4
#define LITTLE_BYTES (64u * TCL_PAGE) /* 40 us of copying, the order of a switch itself */

#define WHOLE_STEP (VMEM_UNIT / 8) /* between two looks whether a huge OS page was written */

#define ASKED_MAX 512u

/* Room for a piece at any offset from a multiple of 2 MiB. */
#define STAGE_BYTES (VMEM_PIECE + VMEM_UNIT)
static char *stage_base;

/* One run of vpages on its way. */
struct trip {
    uintptr_t start; /* of T */
    size_t bytes;
    char *from; /* where A is read: T itself, as long as nobody is held, or its shared window */
    char *stage;
    size_t again;      /* bytes copied again in this round */
    bool is_program_s; /* `from` is T, which the program may take away while it is read */
    bool is_lost;      /* it did */
    bool is_held;      /* nobody writes, and who wants to waits for us: 4 and 5 */
    bool is_whole;     /* one entry of the page table */
    bool is_alike;     /* the stage holds what it held when it was protected, if it is whole */
};

static void fetch(struct trip *trip, size_t at, size_t bytes) {
    unsigned how =
        (trip->is_program_s ? VMEM_COPY_PROGRAM_S : 0u) | (trip->is_held ? VMEM_COPY_HELD : 0u);
    if (!vmem_copy(trip->stage + at, trip->from + at, bytes, how))
        trip->is_lost = true;
}

static void copy_range(struct vmem_range range, void *context) {
    struct trip *trip = context;
    fetch(trip, range.start - trip->start, range.end - range.start);
    trip->again += range.end - range.start;
}

size_t vmem_run(const struct vmem_region *region, const vmem_place *list, size_t first,
                size_t count) {
    size_t step = vmem_vpage(region) / TCL_PAGE, run = 1;
    while (run < count &&
           (list[first] ? list[first + run] == list[first] + run * step : list[first + run] == 0))
        run++;
    return run;
}

/* A piece of address space with the place that T's offset from 2 MiB has: page tables then move
 * whole. */
static char *open_stage(uintptr_t like) {
    if (!stage_base) {
        char *at = tcl_os_mmap(NULL, STAGE_BYTES + VMEM_UNIT, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED)
            return NULL;
        stage_base = (char *)(((uintptr_t)at + VMEM_UNIT - 1) / VMEM_UNIT * VMEM_UNIT);
    }
    return stage_base + like % VMEM_UNIT;
}

static void close_stage(char *at, size_t bytes) {
    tcl_os_mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0);
}

/* A full node gives memory of another one, and no error. What a pool granted was looked at. */
static bool resides(char *stage, vmem_place place, size_t bytes) {
    const struct vmem_segment *segment = &vmem_segments[vmem_segment_of(place)];
    void *at[ASKED_MAX];
    int node[ASKED_MAX];
    for (size_t done = 0; !segment->number && !segment->is_emulated && done < bytes;) {
        size_t count = 0;
        for (; count < ASKED_MAX && done < bytes; done += TCL_PAGE)
            at[count++] = stage + done;
        if (syscall(SYS_move_pages, 0, count, at, NULL, node, 0))
            return errno == ENOSYS; /* a kernel of one node */
        for (size_t i = 0; i < count; i++)
            if (node[i] >= 0 && node[i] != segment->node)
                return false;
    }
    return true;
}

/* The stage shows `place`, with its page table filled, which T gets in 6. Filling it as if for
 * reading is enough: shared memory is writable then too, and the kernel maps sixteen OS pages at a
 * time (0.4 us each instead of 1.0). `is_seen`: it was known to be there when it was copied. */
static bool show(char *stage, vmem_place place, size_t bytes, bool is_seen) {
    if (!vmem_show((uintptr_t)stage, place, bytes))
        return false;
    if ((!syscall(SYS_madvise, stage, bytes, MADV_POPULATE_READ) || errno == EINVAL) &&
        (is_seen || resides(stage, place, bytes)))
        return true;
    close_stage(stage, bytes);
    errno = ENOMEM; /* the node, or the system, is full */
    return false;
}

/* Nobody but this process sees what it shows: memory of its own, or after a fork. */
static bool is_ours_alone(vmem_place home) {
    return !home || home & VMEM_FORKED;
}

/* T shows A, with the rights it is to have: nobody mapped something else there. */
static bool is_still(const struct vmem_region *region, const struct trip *trip, vmem_place home) {
    return vmem_is_shown(trip->start, trip->bytes, home, region->prot);
}

/* Step 4 and 5 for one entry. */
static bool hold_whole(struct trip *trip) {
    if (!vmem_hold_whole(trip->start, trip->bytes, &trip->is_alike))
        return false;
    if (!trip->is_alike)
        fetch(trip, 0, trip->bytes);
    return true;
}

/* Steps 4 and 5. 0 or an errno; then nothing is held. */
static int hold(struct trip *trip, vmem_place home) {
    trip->is_held = true;
    if (is_ours_alone(home)) {
        if (!vmem_hold_private(trip->start, trip->bytes))
            return EBUSY;
        fetch(trip, 0, trip->bytes);
        return 0;
    }
    trip->from = vmem_shared(home);
    trip->is_program_s = false;
    if (trip->is_whole)
        return hold_whole(trip) ? 0 : EBUSY;
    return vmem_hold(trip->start, trip->bytes, copy_range, trip) ? 0 : EBUSY;
}

/* T was what it is to be all the time since it was held, as far as it can be seen. */
static bool is_unchanged(const struct vmem_region *region, const struct trip *trip, vmem_place home,
                         bool is_held) {
    bool is_so = !trip->is_lost && (!is_held || !is_ours_alone(home) ||
                                    vmem_is_held_private(trip->start, trip->bytes));
    errno = EFAULT;
    return is_so && is_still(region, trip, home);
}

/* Steps 4 to 6, or what of them is needed. 0 or an errno; then T shows what it did before. */
static int commit(const struct vmem_region *region, struct trip *trip, vmem_place home,
                  bool is_tracked) {
    char *mapping = (char *)trip->start;
    if (region->prot != (PROT_READ | PROT_WRITE) &&
        syscall(SYS_mprotect, trip->stage, trip->bytes, region->prot))
        return errno;
    if (trip->is_lost || !is_still(region, trip, home))
        return EFAULT;
    int error = is_tracked ? hold(trip, home) : 0;
    if (error)
        return error;
    /* No hole is left that somebody else's mapping could come into. It fails before it unmaps
     * anything, for want of mappings. */
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    if (!is_unchanged(region, trip, home, is_tracked) ||
        tcl_os_mremap(trip->stage, trip->bytes, trip->bytes, flags, mapping) != mapping) {
        error = errno;
        if (is_tracked)
            vmem_untrack(trip->start, trip->bytes);
    }
    if (is_tracked)
        vmem_wake(trip->start, trip->bytes);
    return error;
}

/* Steps 2 and 3. */
static void copy_rounds(struct trip *trip, bool is_known, bool is_tracked) {
    trip->again = 0;
    if (!is_known || !vmem_scan(trip->start, trip->bytes, copy_range, trip)) {
        if (is_known)
            vmem_track(trip->start, trip->bytes); /* it was not, or no longer */
        fetch(trip, 0, trip->bytes);
    }
    size_t before = trip->bytes;
    for (int round = 1; is_tracked && round < ROUNDS_MAX; round++) {
        trip->again = 0;
        if (!vmem_scan(trip->start, trip->bytes, copy_range, trip) || trip->again <= LITTLE_BYTES ||
            trip->again > before / 2)
            break;
        before = trip->again;
    }
}

/* The page table has a huge OS page in one entry, or does again: it is broken up where it was
 * written while it was protected. */
static bool make_whole(const struct vmem_region *region, const struct trip *trip, vmem_place home) {
    if (vmem_is_whole(trip->start, trip->bytes))
        return true;
    return region->prot == (PROT_READ | PROT_WRITE) && is_still(region, trip, home) &&
           vmem_show(trip->start, home, trip->bytes) &&
           !syscall(SYS_madvise, trip->start, trip->bytes, MADV_POPULATE_READ) &&
           vmem_is_whole(trip->start, trip->bytes);
}

/* Step 2 for one entry, which is protected; what is known to be alike is not copied. To migrate
 * what is written meanwhile it need not be copied to the end, or at all. */
static void copy_whole(struct trip *trip, bool is_known, enum vmem_how how) {
    trip->is_alike = is_known && vmem_is_unwritten(trip->start, trip->bytes);
    if (trip->is_alike || (is_known && how == VMEM_MIGRATE))
        return;
    trip->is_alike = true;
    size_t step = how == VMEM_REPLICATE ? trip->bytes : WHOLE_STEP;
    for (size_t at = 0; at < trip->bytes && trip->is_alike; at += step) {
        fetch(trip, at, step);
        trip->is_alike = how == VMEM_REPLICATE || vmem_is_unwritten(trip->start, trip->bytes);
    }
}

/* Memory of a pool is there anyway. */
static bool is_affordable(vmem_place place, size_t bytes) {
    return vmem_segments[vmem_segment_of(place)].number || vmem_is_room(bytes);
}

/* What a copy left behind becomes a shadow, if there is room for one: T may have been written
 * between 6 and now, so that it is copied back. That costs as much as copying; so a switch to what
 * was copied ahead, or to a shadow, leaves none. Pieces of huge OS pages get none either: tracking
 * would break them up. */
static bool keep_shadow(struct vmem_region *region, const struct trip *trip, vmem_place old) {
    bool is_wanted = !region->is_heap && !is_ours_alone(old) && vmem_vpage(region) < VMEM_UNIT &&
                     region->prot & PROT_READ && vmem_twin_bytes + trip->bytes <= vmem_twin_limit;
    if (!is_wanted || !is_affordable(old, trip->bytes) || !vmem_track(trip->start, trip->bytes))
        return false;
    syscall(SYS_madvise, trip->from, trip->bytes, MADV_POPULATE_READ);
    return vmem_copy(trip->from, (char *)trip->start, trip->bytes, VMEM_COPY_PROGRAM_S);
}

/* The kernel moves what T shows, whoever writes meanwhile. */
static int move_in_place(struct vmem_region *region, size_t first, size_t count, int node) {
    size_t vpage = vmem_vpage(region), bytes = count * vpage;
    char *start = (char *)region->start + first * vpage;
    if (!vmem_prefer(start, bytes, node, MPOL_MF_MOVE))
        return errno == EINVAL ? ENODEV : errno;
    for (size_t i = 0; i < count; i++) {
        vmem_place *home = &region->home[first + i];
        *home &= ~((vmem_place)0x7ff << VMEM_ELSEWHERE_AT);
        if (vmem_node_of(*home) != node)
            *home |= (vmem_place)(node + 1) << VMEM_ELSEWHERE_AT;
    }
    return 0;
}

/* A twin of the whole run on that node: the one there is, or a new one. `is_known`: it was alike
 * when tracking began. */
static vmem_place twin_on(struct vmem_region *region, size_t first, size_t count, int node,
                          bool *is_known) {
    size_t vpage = vmem_vpage(region), bytes = count * vpage;
    *is_known = false;
    if (region->is_heap && !region->own)
        return vmem_take(node, bytes, vpage, false);
    if (region->own) {
        const struct vmem_segment *segment = &vmem_segments[vmem_segment_of(region->own)];
        vmem_place own = region->own + first * (vpage / TCL_PAGE), home = vmem_home(region, first);
        bool is_free = segment->node == node && !segment->is_frozen && !segment->is_inherited;
        return is_free && (home & ~VMEM_FORKED) != own ? own : vmem_take(node, bytes, vpage, false);
    }
    vmem_place twin = region->twin[first];
    *is_known =
        twin && vmem_node_of(twin) == node && vmem_run(region, region->twin, first, count) == count;
    if (*is_known)
        return twin;
    vmem_drop_twin(region, first, count);
    twin = vmem_take(node, bytes, vpage, false);
    if (!twin && errno == ENOMEM && vmem_drop_twins())
        twin = vmem_take(node, bytes, vpage, false);
    return twin;
}

static void set(struct vmem_region *region, vmem_place *list, size_t first, size_t count,
                vmem_place place) {
    size_t step = vmem_vpage(region) / TCL_PAGE;
    region->is_private = false;
    region->has_homes = true;
    for (size_t i = 0; i < count; i++)
        list[first + i] = place ? place + i * step : 0;
}

/* Under the heap a sampler may have tracked it for its own ends. Mapped anew it is nobody's, and
 * shows what it showed. */
static bool begin_tracking(const struct vmem_region *region, const struct trip *trip,
                           vmem_place home) {
    if (vmem_track(trip->start, trip->bytes))
        return true;
    return region->own && is_still(region, trip, home) &&
           vmem_show(trip->start, home, trip->bytes) && vmem_track(trip->start, trip->bytes);
}

/* Step 1, and what is read in 2: T itself where the program may read it, whose page table is there,
 * else another mapping of A, whose entries have to be made. *is_known becomes false where nothing
 * is to be had of an earlier copy. */
static bool begin(const struct vmem_region *region, struct trip *trip, vmem_place home,
                  bool *is_known, enum vmem_how how) {
    bool is_huge = region->shift == 21 && vmem_segments[vmem_segment_of(home)].is_huge;
    if (is_huge && *is_known)
        *is_known = how == VMEM_MIGRATE || vmem_is_unwritten(trip->start, trip->bytes);
    trip->is_whole = is_huge && (*is_known || make_whole(region, trip, home));
    char *mapping = (char *)trip->start, *window = vmem_shared(home);
    bool is_read = !trip->is_whole && region->prot & PROT_READ &&
                   !syscall(SYS_madvise, mapping, trip->bytes, MADV_POPULATE_READ);
    trip->from = is_read ? mapping : window;
    trip->is_program_s = is_read;
    if (!is_read && !(trip->is_whole && vmem_is_unwritten(trip->start, trip->bytes)))
        syscall(SYS_madvise, window, trip->bytes, MADV_POPULATE_READ);
    return *is_known || begin_tracking(region, trip, home);
}

/* Copies and, for VMEM_MIGRATE, switches; *shadow then tells whether what was left is one. Signals
 * are blocked where they must be. */
static int travel(struct vmem_region *region, size_t first, size_t count, vmem_place to,
                  bool is_known, bool is_tracked, enum vmem_how how, bool *shadow) {
    size_t bytes = count * vmem_vpage(region);
    vmem_place home = vmem_home(region, first);
    bool is_seen = is_tracked && !is_ours_alone(home); /* writes to T are */
    struct trip trip = {.start = region->start + first * vmem_vpage(region), .bytes = bytes};
    if (!is_still(region, &trip, home))
        return EFAULT;
    trip.stage = open_stage(trip.start);
    if (!trip.stage || !show(trip.stage, to, bytes, is_known))
        return ENOMEM;
    trip.from = (char *)trip.start;
    trip.is_program_s = is_tracked;
    if (is_seen && !begin(region, &trip, home, &is_known, how)) {
        close_stage(trip.stage, bytes);
        return EBUSY;
    }
    sigset_t all, before;
    sigfillset(&all);
    if (!is_tracked)
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, 8);
    if (trip.is_whole)
        copy_whole(&trip, is_known, how);
    else if (is_seen || !is_tracked) /* else nobody writes while it is copied, in 5 */
        copy_rounds(&trip, is_known, is_seen);
    int error = trip.is_lost ? EFAULT : 0;
    if (how == VMEM_MIGRATE) {
        if (is_tracked)
            syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, 8);
        error = commit(region, &trip, home, is_tracked);
    }
    close_stage(trip.stage, bytes);
    if (how == VMEM_MIGRATE || !is_tracked)
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
    *shadow = how == VMEM_MIGRATE && !error && is_tracked && !is_known &&
              keep_shadow(region, &trip, home);
    if (is_seen)
        syscall(SYS_madvise, vmem_shared(home), bytes, MADV_DONTNEED);
    if (error && region->is_heap && is_tracked)
        vmem_untrack(trip.start, bytes);
    return error;
}

static int move_run(struct vmem_region *region, size_t first, size_t count, int node,
                    enum vmem_how how) {
    vmem_place home = vmem_home(region, first);
    bool is_tracked = vmem_can_track(), is_known = false;
    if (!is_ours_alone(home) && vmem_node_of(home) == node)
        return 0;
    if (is_ours_alone(home) && (!(region->prot & PROT_READ) || how == VMEM_REPLICATE))
        return ENOTSUP;
    if (!is_tracked && !(how == VMEM_MIGRATE && vmem_threads() == 1))
        return how == VMEM_MIGRATE && home ? move_in_place(region, first, count, node) : ENOTSUP;
    vmem_place to = twin_on(region, first, count, node, &is_known);
    if (!to && count > 1 && errno == ENOMEM) { /* no room in one piece */
        int error = move_run(region, first, count / 2, node, how);
        return error ? error : move_run(region, first + count / 2, count - count / 2, node, how);
    }
    if (!to)
        return errno;
    size_t bytes = count * vmem_vpage(region);
    if (!is_known && !is_affordable(to, bytes) &&
        !(vmem_drop_twins() && is_affordable(to, bytes))) {
        vmem_give(to, bytes);
        return ENOMEM;
    }
    if (is_known)
        vmem_twin_bytes -= bytes;
    if (!region->is_heap)
        set(region, region->twin, first, count, 0);
    bool shadow = false;
    int error = travel(region, first, count, to, is_known, is_tracked, how, &shadow);
    if (!error && how == VMEM_MIGRATE)
        set(region, region->home, first, count, to);
    if (!error && (how == VMEM_REPLICATE || shadow)) {
        set(region, region->twin, first, count, shadow ? home : to);
        vmem_twin_bytes += bytes;
    } else if (error || home) {
        vmem_give(error ? to : home, bytes);
    }
    return error;
}

/* Vpages from `first`, without a home, of which either none or each has memory (*is_any): at most
 * `count`. */
static size_t touched_alike(const struct vmem_region *region, size_t first, size_t count,
                            bool *is_any) {
    size_t vpage = vmem_vpage(region);
    uintptr_t at = region->start + first * vpage;
    size_t alike = vmem_look_for_memory(at, count * vpage, is_any);
    *is_any |= alike < vpage;
    return *is_any ? (alike + vpage - 1) / vpage : alike / vpage;
}

int vmem_move(struct vmem_region *region, size_t first, size_t count, int node, enum vmem_how how) {
    int error = 0;
    bool is_open = vmem_can_track() && vmem_track_open();
    vmem_look_open();
    vmem_copy_begin();
    if (vmem_can_track() && !is_open)
        error = EMFILE;
    for (size_t done = 0; !error && done < count;) {
        size_t run = vmem_run(region, region->home, first + done, count - done);
        bool is_any = true;
        if (!region->is_heap)
            run = vmem_run(region, region->twin, first + done, run);
        if (!region->is_heap && !region->home[first + done])
            run = touched_alike(region, first + done, run, &is_any);
        error = !is_any ? 0 : move_run(region, first + done, run, node, how);
        done += run;
    }
    vmem_look_close();
    if (is_open)
        vmem_track_close();
    return error;
}
