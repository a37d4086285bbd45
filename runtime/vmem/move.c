/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * move.c: moves vpages to another place while the program reads and writes them.
 * In: vpages and a node. Out: the same bytes on that node. Knows nothing of why they move.
 *
 * Copy first, switch later. A mapping T of the program shows place A; `stage`, a mapping that the
 * program does not know, shows place B:
 *
 *   1. Write tracking of T begins.                 every later write to A is noted
 *   2. A is copied to the stage.                   the program runs
 *   3. What was written meanwhile is copied again, until it is little, or more than half of the
 * copy before: copying does not catch up with such writers. At most ROUNDS_MAX times.
 *   4. T is held: its entries are dropped, and every access waits (write_tracking.c).
 *   5. What was written since the last copy is copied.
 *   6. One mremap moves the stage over T; waiting threads are woken.
 *
 * No write is lost. A write to T comes before 1, and then 2 copies it; or between 1 and 4, and then
 * its OS page is unprotected at a later scan. The scan of a round protects it again *before* the
 * copy that follows, so that the next scan finds a write during the copy; the last scan is that of
 * 4, which sees all writes to A, and 5 copies them while no thread can write. Or it comes after 4:
 * then it waits, and finds B after 6. A reader sees A until 4 and B after 6, which are equal then:
 * it never sees an older value after a newer one. The kernel's own writes through T (system calls
 * into buffers) are held like the program's.
 *
 * A vpage of 2 MiB that the page table has in one entry (a huge OS page) stays whole: its writes
 * are tracked as one. Copying ahead ends at the first write, and then 5 copies all of it while all
 * accesses wait, as in the kernel's own migration; without a write they wait only for 6.
 *
 * No value is torn. A copy may tear a value that is being written; but then its OS page is noted
 * and copied again, at the latest in 5, when no thread writes. The stage is not visible before 6.
 *
 * Direct memory access bypasses the mapping: a device that is writing to A (O_DIRECT, registered
 * buffers) continues to do so. Vregions with such buffers must not be moved meanwhile.
 *
 * Private memory (after a fork) is copied once, in 5, while writes wait. The heap's own
 * does not move like this, but by private.c.
 *
 * What B's mapping lacks: waiters of futexes that are not private, which the kernel finds by the
 * place in the file; locks and advice of T. The program that registers a vregion knows that.
 *
 * In 2 and 3 a device or several threads copy (copy.c); each round ends when all of it is copied.
 * In 5 the mover copies alone, so that it does not wait for a thread that may be preempted.
 *
 * The program may unmap, remap or protect T by a system call that the runtime does not see. So T is
 * checked before 1, before 4 and before 6 (verify.c), and not moved if it has changed; and T is
 * read by a system call, which can fail. Between the last check and 6 there are two system calls: a
 * change just there is overwritten. The kernel has no call that does both.
 *
 * Signals are blocked from 4 to 6: a handler in this thread that touches T would wait for itself.
 * No lock of the allocator or of libc is taken: a thread that is held in 4 may have it.
 *
 * Without tracking, a process with one thread can move vpages all the same, as no other thread
 * writes. Otherwise the kernel moves the memory in place (mbind), which is slower.
 */
#include "region.h"
#include <errno.h>
#include <linux/mempolicy.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Chosen, not measured: each round must copy at most half of the one before, so four leave 1/8. */
#define ROUNDS_MAX 4
#define SETTLED_BYTES (64u * TCL_PAGE) /* 40 us of copying, as long as a switch itself */

/* Copied between two checks whether a huge OS page was written: 256 KiB, some 50 us. Chosen, not
 * measured. */
#define HUGE_STEP (VMEM_UNIT / 8)

#define QUERY_PAGES 512u /* OS pages of a piece, whose addresses and nodes are 6 KiB of stack */

/* Room for a piece at any offset from a multiple of 2 MiB. */
#define STAGE_BYTES (VMEM_PIECE + VMEM_UNIT)
static char *stage_base;

/* One run of vpages that is being moved. */
struct transfer {
    uintptr_t start; /* of T */
    size_t bytes;
    char *from; /* where A is read: T itself, until it is held, or A's shared window */
    char *stage;
    size_t copied_again; /* bytes, in this round */
    bool is_fallible;    /* `from` is T, which the program may unmap while it is read */
    bool is_lost;        /* it did */
    bool is_held;        /* writes wait: 4 and 5 */
    bool is_huge;        /* one entry of the page table */
    bool is_equal;       /* of a huge OS page: the stage has what T had when it was protected */
};

static void copy_at(struct transfer *transfer, size_t at, size_t bytes) {
    tcl_assert(at <= transfer->bytes && bytes <= transfer->bytes - at);
    unsigned how = (transfer->is_fallible ? VMEM_COPY_FALLIBLE : 0u) |
                   (transfer->is_held ? VMEM_COPY_HELD : 0u);
    if (!vmem_copy(transfer->stage + at, transfer->from + at, bytes, how))
        transfer->is_lost = true;
}

static void copy_range(struct vmem_range range, void *context) {
    struct transfer *transfer = context;
    copy_at(transfer, range.start - transfer->start, range.end - range.start);
    transfer->copied_again += range.end - range.start;
}

size_t vmem_run(const struct vmem_region *region, const vmem_place *list, size_t first,
                size_t count) {
    size_t step = vmem_vpage(region) / TCL_PAGE, run = 1;
    while (run < count &&
           (list[first] ? list[first + run] == list[first] + run * step : list[first + run] == 0))
        run++;
    return run;
}

/* Address space with the same offset from a multiple of 2 MiB as T: mremap then moves whole page
 * tables. */
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

/* The kernel takes memory of another node when one is full, without an error. The daemon has
 * verified what a pool granted. */
static bool is_resident(char *stage, vmem_place place, size_t bytes) {
    const struct vmem_segment *segment = &vmem_segments[vmem_segment_of(place)];
    void *at[QUERY_PAGES];
    int node[QUERY_PAGES];
    for (size_t done = 0; !segment->number && !segment->is_emulated && done < bytes;) {
        size_t count = 0;
        for (; count < QUERY_PAGES && done < bytes; done += TCL_PAGE)
            at[count++] = stage + done;
        if (syscall(SYS_move_pages, 0, count, at, NULL, node, 0))
            return errno == ENOSYS; /* a kernel of one node */
        for (size_t i = 0; i < count; i++)
            if (node[i] >= 0 && node[i] != segment->node)
                return false;
    }
    return true;
}

/* Maps `place` on the stage and fills its page table, which T gets in 6. Populating it for reading
 * is enough: entries of shared memory are writable then, too, and the kernel maps sixteen OS pages
 * at a time (0.4 us each instead of 1.0). `is_copied`: an earlier copy is there. */
static bool show_on_stage(char *stage, vmem_place place, size_t bytes, bool is_copied) {
    if (!vmem_map_place((uintptr_t)stage, place, bytes))
        return false;
    if ((!syscall(SYS_madvise, stage, bytes, MADV_POPULATE_READ) || errno == EINVAL) &&
        (is_copied || is_resident(stage, place, bytes)))
        return true;
    close_stage(stage, bytes);
    errno = ENOMEM; /* the node, or the system, is full */
    return false;
}

/* No other process maps it: private memory, always or since a fork. */
static bool is_private(vmem_place home) {
    return !home || home & VMEM_FORKED;
}

/* T still shows A, with its rights. */
static bool is_mapped_as_made(const struct vmem_region *region, const struct transfer *transfer,
                              vmem_place home) {
    return vmem_is_mapped_as(transfer->start, transfer->bytes, home, region->prot);
}

/* Steps 4 and 5 for a huge OS page. */
static bool hold_huge(struct transfer *transfer) {
    if (!vmem_hold_huge(transfer->start, transfer->bytes, &transfer->is_equal))
        return false;
    if (!transfer->is_equal)
        copy_at(transfer, 0, transfer->bytes);
    return true;
}

/* Steps 4 and 5. 0 or an errno; then nothing is held. */
static int hold(struct transfer *transfer, vmem_place home) {
    transfer->is_held = true;
    if (is_private(home)) {
        if (!vmem_hold_private(transfer->start, transfer->bytes))
            return EBUSY;
        copy_at(transfer, 0, transfer->bytes);
        return 0;
    }
    transfer->from = vmem_shared(home);
    transfer->is_fallible = false;
    if (transfer->is_huge)
        return hold_huge(transfer) ? 0 : EBUSY;
    return vmem_hold(transfer->start, transfer->bytes, copy_range, transfer) ? 0 : EBUSY;
}

/* T has not changed since it was held, as far as can be seen. */
static bool is_unchanged(const struct vmem_region *region, const struct transfer *transfer,
                         vmem_place home, bool is_held) {
    bool is_so = !transfer->is_lost && (!is_held || !is_private(home) ||
                                        vmem_is_held_private(transfer->start, transfer->bytes));
    errno = EFAULT;
    return is_so && is_mapped_as_made(region, transfer, home);
}

/* Steps 4 to 6, as far as needed. 0 or an errno; then T shows A as before. */
static int commit(const struct vmem_region *region, struct transfer *transfer, vmem_place home,
                  bool is_tracked) {
    char *mapping = (char *)transfer->start;
    if (region->prot != (PROT_READ | PROT_WRITE) &&
        syscall(SYS_mprotect, transfer->stage, transfer->bytes, region->prot))
        return errno;
    if (transfer->is_lost || !is_mapped_as_made(region, transfer, home))
        return EFAULT;
    int error = is_tracked ? hold(transfer, home) : 0;
    if (error)
        return error;
    /* One call, so that there is no hole for another thread's mmap. With too many mappings it fails
     * before it unmaps anything. */
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    if (!is_unchanged(region, transfer, home, is_tracked) ||
        tcl_os_mremap(transfer->stage, transfer->bytes, transfer->bytes, flags, mapping) !=
            mapping) {
        error = errno;
        if (is_tracked)
            vmem_untrack(transfer->start, transfer->bytes);
    }
    if (is_tracked)
        vmem_wake(transfer->start, transfer->bytes);
    return error;
}

/* Steps 2 and 3. */
static void copy_rounds(struct transfer *transfer, bool is_known, bool is_tracked) {
    transfer->copied_again = 0;
    if (!is_known || !vmem_scan(transfer->start, transfer->bytes, copy_range, transfer)) {
        if (is_known)
            vmem_track(transfer->start, transfer->bytes); /* it is not tracked any more */
        copy_at(transfer, 0, transfer->bytes);
    }
    size_t before = transfer->bytes;
    for (int round = 1; is_tracked && round < ROUNDS_MAX; round++) {
        transfer->copied_again = 0;
        if (!vmem_scan(transfer->start, transfer->bytes, copy_range, transfer) ||
            transfer->copied_again <= SETTLED_BYTES || transfer->copied_again > before / 2)
            break;
        before = transfer->copied_again;
    }
}

/* Makes the page table map a huge OS page by one entry again, if a write while it was protected has
 * split it. */
static bool make_huge(const struct vmem_region *region, const struct transfer *transfer,
                      vmem_place home) {
    if (vmem_is_huge_entry(transfer->start, transfer->bytes))
        return true;
    return region->prot == (PROT_READ | PROT_WRITE) && is_mapped_as_made(region, transfer, home) &&
           vmem_map_place(transfer->start, home, transfer->bytes) &&
           !syscall(SYS_madvise, transfer->start, transfer->bytes, MADV_POPULATE_READ) &&
           vmem_is_huge_entry(transfer->start, transfer->bytes);
}

/* Step 2 for a huge OS page, which is protected; one that is known to be equal is not copied. For a
 * migration the copy ends at the first write, since step 5 copies all of it then. */
static void copy_huge(struct transfer *transfer, bool is_known, enum vmem_how how) {
    transfer->is_equal = is_known && vmem_is_unwritten(transfer->start, transfer->bytes);
    if (transfer->is_equal || (is_known && how == VMEM_MIGRATE))
        return;
    transfer->is_equal = true;
    size_t step = how == VMEM_REPLICATE ? transfer->bytes : HUGE_STEP;
    for (size_t at = 0; at < transfer->bytes && transfer->is_equal; at += step) {
        copy_at(transfer, at, step);
        transfer->is_equal =
            how == VMEM_REPLICATE || vmem_is_unwritten(transfer->start, transfer->bytes);
    }
}

/* Memory of a pool is not charged to the control group. */
static bool is_affordable(vmem_place place, size_t bytes) {
    return vmem_segments[vmem_segment_of(place)].number || vmem_fits_limit(bytes);
}

/* Makes the old place a shadow, if there is room for one. T may have been written since 6, so it is
 * copied back, which costs as much as the move did; therefore a switch to a replica or a shadow
 * leaves none. Neither do huge OS pages, which tracking would split. */
static bool keep_shadow(struct vmem_region *region, const struct transfer *transfer,
                        vmem_place old) {
    bool is_wanted = !is_private(old) && vmem_vpage(region) < VMEM_UNIT &&
                     region->prot & PROT_READ &&
                     vmem_twin_bytes + transfer->bytes <= vmem_twin_limit;
    if (!is_wanted || !is_affordable(old, transfer->bytes) ||
        !vmem_track(transfer->start, transfer->bytes))
        return false;
    syscall(SYS_madvise, transfer->from, transfer->bytes, MADV_POPULATE_READ);
    return vmem_copy(transfer->from, (char *)transfer->start, transfer->bytes, VMEM_COPY_FALLIBLE);
}

/* Has the kernel move what T shows, even while the program writes. */
static int move_in_place(struct vmem_region *region, size_t first, size_t count, int node) {
    size_t vpage = vmem_vpage(region), bytes = count * vpage;
    char *start = (char *)region->start + first * vpage;
    if (!vmem_bind_preferred(start, bytes, node, MPOL_MF_MOVE))
        return errno == EINVAL ? ENODEV : errno;
    for (size_t i = 0; i < count; i++) {
        vmem_place *home = &region->home[first + i];
        *home &= ~((vmem_place)0x7ff << VMEM_ELSEWHERE_AT);
        if (vmem_node_of(*home) != node)
            *home |= (vmem_place)(node + 1) << VMEM_ELSEWHERE_AT;
    }
    return 0;
}

/* A twin of the whole run on that node, the existing one or a new one. `is_known`: it was equal
 * when tracking began. */
static vmem_place twin_on(struct vmem_region *region, size_t first, size_t count, int node,
                          bool *is_known) {
    size_t vpage = vmem_vpage(region), bytes = count * vpage;
    *is_known = false;
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

static void set_places(struct vmem_region *region, vmem_place *list, size_t first, size_t count,
                       vmem_place place) {
    size_t step = vmem_vpage(region) / TCL_PAGE;
    region->is_private = false;
    for (size_t i = 0; i < count; i++)
        list[first + i] = place ? place + i * step : 0;
}

/* Step 1, and the choice of what 2 reads: T itself where the program may read it, as its page table
 * is filled, else A's window, whose entries have to be made. Clears *is_known when an earlier copy
 * is of no use. */
static bool begin(const struct vmem_region *region, struct transfer *transfer, vmem_place home,
                  bool *is_known, enum vmem_how how) {
    bool is_huge = region->shift == 21 && vmem_segments[vmem_segment_of(home)].is_huge;
    if (is_huge && *is_known)
        *is_known = how == VMEM_MIGRATE || vmem_is_unwritten(transfer->start, transfer->bytes);
    transfer->is_huge = is_huge && (*is_known || make_huge(region, transfer, home));
    char *mapping = (char *)transfer->start, *window = vmem_shared(home);
    bool is_read = !transfer->is_huge && region->prot & PROT_READ &&
                   !syscall(SYS_madvise, mapping, transfer->bytes, MADV_POPULATE_READ);
    transfer->from = is_read ? mapping : window;
    transfer->is_fallible = is_read;
    if (!is_read && !(transfer->is_huge && vmem_is_unwritten(transfer->start, transfer->bytes)))
        syscall(SYS_madvise, window, transfer->bytes, MADV_POPULATE_READ);
    return *is_known || vmem_track(transfer->start, transfer->bytes);
}

/* Copies and, for VMEM_MIGRATE, switches; *shadow is then whether the old place is a shadow. */
static int transfer_run(struct vmem_region *region, size_t first, size_t count, vmem_place to,
                        bool is_known, bool is_tracked, enum vmem_how how, bool *shadow) {
    size_t bytes = count * vmem_vpage(region);
    vmem_place home = region->home[first];
    bool is_write_tracked = is_tracked && !is_private(home);
    struct transfer transfer = {.start = region->start + first * vmem_vpage(region),
                                .bytes = bytes};
    tcl_assert(transfer.start % VMEM_UNIT + bytes <= STAGE_BYTES);
    if (!is_mapped_as_made(region, &transfer, home))
        return EFAULT;
    transfer.stage = open_stage(transfer.start);
    if (!transfer.stage || !show_on_stage(transfer.stage, to, bytes, is_known))
        return ENOMEM;
    transfer.from = (char *)transfer.start;
    transfer.is_fallible = is_tracked;
    if (is_write_tracked && !begin(region, &transfer, home, &is_known, how)) {
        close_stage(transfer.stage, bytes);
        return EBUSY;
    }
    sigset_t all, before;
    sigfillset(&all);
    if (!is_tracked)
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, 8);
    if (transfer.is_huge)
        copy_huge(&transfer, is_known, how);
    else if (is_write_tracked || !is_tracked) /* else only 5 copies, while writes wait */
        copy_rounds(&transfer, is_known, is_write_tracked);
    int error = transfer.is_lost ? EFAULT : 0;
    if (how == VMEM_MIGRATE) {
        if (is_tracked)
            syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, 8);
        error = commit(region, &transfer, home, is_tracked);
    }
    close_stage(transfer.stage, bytes);
    if (how == VMEM_MIGRATE || !is_tracked)
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
    *shadow = how == VMEM_MIGRATE && !error && is_tracked && !is_known &&
              keep_shadow(region, &transfer, home);
    if (is_write_tracked)
        syscall(SYS_madvise, vmem_shared(home), bytes, MADV_DONTNEED);
    return error;
}

static int move_run(struct vmem_region *region, size_t first, size_t count, int node,
                    enum vmem_how how) {
    vmem_place home = region->home[first];
    bool is_tracked = vmem_can_track(), is_known = false;
    if (!is_private(home) && vmem_node_of(home) == node)
        return 0;
    if (is_private(home) && (!(region->prot & PROT_READ) || how == VMEM_REPLICATE))
        return ENOTSUP;
    if (!is_tracked && !(how == VMEM_MIGRATE && vmem_threads() == 1))
        return how == VMEM_MIGRATE && home ? move_in_place(region, first, count, node) : ENOTSUP;
    vmem_place to = twin_on(region, first, count, node, &is_known);
    if (!to && count > 1 && errno == ENOMEM) { /* no contiguous room */
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
    set_places(region, region->twin, first, count, 0);
    bool shadow = false;
    int error = transfer_run(region, first, count, to, is_known, is_tracked, how, &shadow);
    if (!error && how == VMEM_MIGRATE)
        set_places(region, region->home, first, count, to);
    if (!error && (how == VMEM_REPLICATE || shadow)) {
        set_places(region, region->twin, first, count, shadow ? home : to);
        vmem_twin_bytes += bytes;
    } else if (error || home) {
        vmem_give(error ? to : home, bytes);
    }
    return error;
}

/* Vpages from `first` without a home, at most `count`, of which none or each has memory (*is_any).
 */
static size_t touched_run(const struct vmem_region *region, size_t first, size_t count,
                          bool *is_any) {
    size_t vpage = vmem_vpage(region);
    uintptr_t at = region->start + first * vpage;
    size_t alike = vmem_find_memory(at, count * vpage, is_any);
    *is_any |= alike < vpage;
    return *is_any ? (alike + vpage - 1) / vpage : alike / vpage;
}

int vmem_move(struct vmem_region *region, size_t first, size_t count, int node, enum vmem_how how) {
    tcl_assert_debug(vmem_is_locked() && count > 0);
    tcl_assert_debug((first + count) << region->shift <= region->bytes);
    int error = 0;
    bool is_open = vmem_can_track() && vmem_track_open();
    vmem_query_open();
    vmem_copy_begin();
    if (vmem_can_track() && !is_open)
        error = EMFILE;
    for (size_t done = 0; !error && done < count;) {
        size_t run = vmem_run(region, region->home, first + done, count - done);
        bool is_any = true;
        run = vmem_run(region, region->twin, first + done, run);
        if (!region->home[first + done])
            run = touched_run(region, first + done, run, &is_any);
        error = !is_any ? 0 : move_run(region, first + done, run, node, how);
        done += run;
    }
    vmem_query_close();
    if (is_open)
        vmem_track_close();
    return error;
}
