/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * private.c: moves private memory of the heap to another node while the program uses it.
 * In: ranges and a node. Out: the same bytes on that node, in the same mapping. Knows nothing of
 * segments, vregions or why they move.
 *
 *   T      [ a b c d ]     the program's mapping
 *   aside  [ . . . . ]     where the OS pages of T go, unknown to the program
 *   stage  [ A B C D ]     OS pages on the node, unknown to the program
 *
 *   1. T's OS pages become this process's alone (a write fault each, without a write).
 *   2. T is registered with a userfaultfd: who touches a part without memory waits.
 *   3. A chunk's OS pages move from T to `aside` (UFFDIO_MOVE).
 *   4. They are copied to `stage`.
 *   5. The copies move from `stage` to T, which wakes who waits. 3 to 5 again for the next chunk.
 *   6. T is unregistered, and `aside` emptied.
 *
 * Nothing that the memory had is lost, because T's mapping is never replaced, only what it maps:
 *
 * - Every access is before 3 or after 5. It finds the bytes that every earlier access left: between
 *   3 and 5 no mapping that the program or the kernel may write shows them. So there is nothing to
 *   track and nothing to copy twice. A system call that writes to a buffer waits like a thread.
 * - Devices. Step 3 fails for an OS page that is pinned (EBUSY): the kernel looks after it has
 *   removed the entry, when no new pin can come. So registered buffers of io_uring, RDMA, direct
 *   I/O and AIO in flight are not moved. The check comes before the copy; a check after it would
 *   miss a device that wrote and let go meanwhile.
 * - Locks (mlock), advice (MADV_DONTDUMP, WIPEONFORK, DONTFORK, MERGEABLE, huge pages), protection
 *   keys, names and policies belong to the mapping, which stays. Locked and protected memory is
 *   refused by step 3 (EINVAL), since `aside` is neither.
 * - Futexes. The kernel finds waiters by (address space, address) in private memory, whatever OS
 *   page is there, be the futex private or shared; a file's memory it finds by its place in the
 *   file. That is why memory of the heap never becomes a memfd's when it moves: robust mutexes,
 *   process-shared conditions, and threads that are joined and have their stack in the heap would
 *   lose who waits for them.
 * - Forks copy on write as ever. They wait for the lock that is held from 1 to 6; a child never
 *   lacks a chunk, except one of a raw clone or _Fork just between 3 and 5.
 *
 * If step 5 fails, because the program locked or protected T by a raw system call since 3, the
 * kernel copies from the stage instead, which needs no like rights. What the program has unmapped
 * since needs nothing.
 *
 * The userfaultfd must also hold up the kernel's accesses, as in write_tracking.c. A debugger's
 * would fail instead (EIO): a traced process does not move. If the program closed the userfaultfd
 * between 3 and 5, the kernel would serve touches with zeroes; so the thread that moves has a
 * descriptor table of its own, which starts empty.
 *
 * What is not seen: references that do not count as pins. File systems that do direct I/O so (NFS,
 * Ceph, 9p) write to the old OS page if a chunk moves meanwhile.
 *
 * The model in tests/vmem_model_alone.c goes through all orders of these steps with writers,
 * devices, waiters and forks, and finds the loss when a step is left out.
 */
#include "region.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* linux/userfaultfd.h of 6.8, for older headers. */
#define FEATURE_MOVE (1ull << 16)
struct move_pages {
    uint64_t to, from, bytes, mode;
    int64_t moved; /* or a negative errno */
};
#define MOVE_IOCTL _IOWR(0xAA, 5, struct move_pages)

#define CLOSE_UNSHARE 2u /* CLOSE_RANGE_UNSHARE, linux/close_range.h */

/* Bytes out of the program's reach at a time: some 20 us (150 us for 2 MiB, measured). */
#define CHUNK ((size_t)256 << 10)
/* The kernel wants a call again when it contends for a lock. Chosen, not measured. */
#define RETRIES_MAX 64
/* Chosen, not measured: a loop that ends only if the kernel has no memory for an OS page that this
 * thread has just freed. */
#define COPIES_MAX 10000
#define QUERY_PAGES 512u   /* OS pages of a piece, whose addresses and nodes are 6 KiB of stack */
#define STATUS_BYTES 2048u /* the fields that are read are in the first 1.4 KiB, names included */

/* Of the thread that moves alone, in its own table. */
static int exchanger = -1;
static char *aside_base, *stage_base;

/* One run of OS pages. */
struct run {
    char *mapping, *aside, *stage;
    size_t moved; /* bytes */
    int error;    /* errno of the first OS page that was not moved */
    bool is_huge; /* one entry of the page table */
};

bool vmem_private_can_move(void) {
    int fd = vmem_open_userfaultfd(FEATURE_MOVE);
    if (fd >= 0)
        syscall(SYS_close, fd);
    return fd >= 0;
}

bool vmem_private_start(void) {
    if (syscall(SYS_close_range, 0u, ~0u, CLOSE_UNSHARE))
        return false;
    exchanger = vmem_open_userfaultfd(FEATURE_MOVE);
    return exchanger >= 0;
}

/* ---- What the kernel knows ------------------------------------------------------------------- */

/* By its status, which names the tracer as any reader sees it. Unknown counts as traced. */
static bool is_traced(void) {
    char status[STATUS_BYTES];
    if (!vmem_read_text("/proc/self/status", status, sizeof(status)))
        return true;
    const char *tracer = strstr(status, "\nTracerPid:\t");
    return !tracer || tracer[sizeof("\nTracerPid:\t") - 1] != '0';
}

/* All of it is on the node; `unknown` where the kernel has one node only. */
static bool is_on(char *start, size_t bytes, int node, bool unknown) {
    void *at[QUERY_PAGES];
    int found[QUERY_PAGES];
    for (size_t done = 0; done < bytes;) {
        size_t count = 0;
        for (; count < QUERY_PAGES && done < bytes; done += TCL_PAGE)
            at[count++] = start + done;
        if (syscall(SYS_move_pages, 0, count, at, NULL, found, 0))
            return errno == ENOSYS && unknown;
        for (size_t i = 0; i < count; i++)
            if (found[i] != node)
                return false;
    }
    return true;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* An empty mapping with the same offset from a multiple of 2 MiB as T, so that huge OS pages can
 * move as one. It has no page table: one of small OS pages would be in their way. */
static char *make_area(char **base, const char *like, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, rights = PROT_READ | PROT_WRITE;
    if (!*base) {
        char *at = tcl_os_mmap(NULL, VMEM_PIECE + 2 * VMEM_UNIT, PROT_NONE, flags, -1, 0);
        if (at == MAP_FAILED)
            return NULL;
        *base = (char *)(((uintptr_t)at + VMEM_UNIT - 1) / VMEM_UNIT * VMEM_UNIT);
    }
    char *area = *base + (uintptr_t)like % VMEM_UNIT;
    if (tcl_os_mmap(area, bytes, rights, flags | MAP_FIXED, -1, 0) != area)
        return NULL;
    syscall(SYS_madvise, area, bytes, MADV_DONTFORK);
    syscall(SYS_madvise, area, bytes, MADV_DONTDUMP);
    return area;
}

static bool is_huge(uintptr_t start, size_t bytes) {
    if (bytes != VMEM_UNIT || start % VMEM_UNIT || !vmem_pagemap_open())
        return false;
    bool is_so = vmem_is_huge_entry(start, bytes);
    vmem_track_close();
    return is_so;
}

static void drop_area(char *area, size_t bytes) {
    tcl_os_mmap(area, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0);
}

/* Copies' memory on the node, as far as the machine has that node; false: it has no room. */
static bool fill_stage(struct run *run, size_t bytes, int node) {
    bool is_emulated = !vmem_bind_preferred(run->stage, bytes, node, 0);
    if (run->is_huge)
        syscall(SYS_madvise, run->stage, bytes, MADV_HUGEPAGE);
    return !syscall(SYS_madvise, run->stage, bytes, MADV_POPULATE_WRITE) &&
           (is_emulated || is_on(run->stage, bytes, node, true));
}

static bool watch(char *start, size_t bytes) {
    struct uffdio_register what = {.range = {(uintptr_t)start, bytes},
                                   .mode = UFFDIO_REGISTER_MODE_MISSING};
    return !syscall(SYS_ioctl, exchanger, UFFDIO_REGISTER, &what);
}

/* Moves OS pages; returns the bytes from the start that did. *error is why the next did not. */
static size_t exchange(char *to, const char *from, size_t bytes, int *error) {
    size_t done = 0;
    for (int retries = 0; done < bytes && retries < RETRIES_MAX;) {
        struct move_pages what = {
            .to = (uintptr_t)to + done, .from = (uintptr_t)from + done, .bytes = bytes - done};
        if (!syscall(SYS_ioctl, exchanger, MOVE_IOCTL, &what))
            return bytes;
        *error = errno;
        if (what.moved > 0) { /* the next call says why not all */
            done += (size_t)what.moved;
            continue;
        }
        if (*error != EAGAIN)
            break;
        retries++;
        sched_yield();
    }
    return done;
}

/* Instead of step 5, for an OS page whose mapping has changed since step 3. `aside` has the same
 * bytes, and gives up the memory that this takes. */
static void copy_back(char *to, const char *from, char *aside) {
    syscall(SYS_madvise, aside, TCL_PAGE, MADV_DONTNEED);
    for (int i = 0; i < COPIES_MAX; i++) {
        struct uffdio_copy what = {
            .dst = (uintptr_t)to,
            .src = (uintptr_t)from,
            .len = TCL_PAGE,
        };
        if (!syscall(SYS_ioctl, exchanger, UFFDIO_COPY, &what) || errno == EEXIST ||
            errno == ENOENT || errno == ESRCH) /* the program has mapped something else there */
            return;
        sched_yield();
    }
    tcl_assert(!"an OS page of the program could not be returned to it");
}

/* Steps 4 and 5 for what is aside. */
static void put_back(struct run *run, size_t at, size_t bytes) {
    int error = 0;
    memcpy(run->stage + at, run->aside + at, bytes);
    size_t back = exchange(run->mapping + at, run->stage + at, bytes, &error);
    for (; back < bytes; back += TCL_PAGE)
        copy_back(run->mapping + at + back, run->stage + at + back, run->aside + at + back);
    run->moved += bytes;
}

/* Steps 3 to 5. Who is refused stays; EINVAL may be about a part only. */
static void move_chunk(struct run *run, size_t at, size_t end) {
    size_t unit = run->is_huge ? VMEM_UNIT : TCL_PAGE;
    while (at < end) {
        int error = 0;
        size_t out = exchange(run->aside + at, run->mapping + at, end - at, &error);
        if (out)
            put_back(run, at, out);
        at += out;
        if (at < end && error == EINVAL && end - at > unit) {
            size_t half = at + (end - at) / 2 / unit * unit;
            move_chunk(run, at, half);
            at = half;
        } else if (at < end) {
            run->error = run->error ? run->error : error;
            at += unit;
        }
    }
}

/* Steps 1 to 6, but for the areas. */
static void move_run(struct run *run, size_t bytes, int node) {
    bool is_alone = !syscall(SYS_madvise, run->mapping, bytes, MADV_POPULATE_WRITE);
    if (!is_alone || !watch(run->mapping, bytes)) {
        run->error = errno;
        return;
    }
    if (fill_stage(run, bytes, node) && watch(run->aside, bytes)) {
        size_t step = run->is_huge ? VMEM_UNIT : CHUNK;
        for (size_t at = 0; at < bytes; at += step)
            move_chunk(run, at, at + step < bytes ? at + step : bytes);
    } else {
        run->error = ENOMEM;
    }
    vmem_unregister(exchanger, -1, (uintptr_t)run->mapping, bytes);
}

int vmem_move_private(uintptr_t start, size_t bytes, int node, size_t *moved) {
    tcl_assert_debug(vmem_is_locked() && bytes <= VMEM_PIECE && exchanger >= 0);
    struct run run = {.mapping = (char *)start};
    *moved = is_on(run.mapping, bytes, node, false) ? bytes : 0;
    if (*moved)
        return 0;
    if (is_traced())
        return EPERM;
    if (!vmem_fits_limit(bytes))
        return ENOMEM;
    run.is_huge = is_huge(start, bytes);
    run.aside = make_area(&aside_base, run.mapping, bytes);
    run.stage = make_area(&stage_base, run.mapping, bytes);
    if (!run.aside || !run.stage)
        return ENOMEM;
    move_run(&run, bytes, node);
    drop_area(run.aside, bytes);
    drop_area(run.stage, bytes);
    *moved = run.moved;
    return run.error;
}
