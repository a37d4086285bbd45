/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * write_tracking.c: sees writes to mappings, and holds up access to them.
 * In: ranges of addresses. Out: what was written; a stretch of time in which nobody reads or
 * writes. Knows nothing of segments or vregions.
 *
 * Two features of one userfaultfd. Asynchronous write protection (Linux 6.7): the kernel itself
 * takes the protection off at a write, and PAGEMAP_SCAN finds where it is off and puts it on
 * again, OS page by OS page and atomically. Minor faults: once the page table entries of a mapping
 * are dropped, whoever touches it waits until it is woken.
 *
 * The order of vmem_hold makes the answer exact. Dropping an entry (MADV_DONTNEED) leaves a
 * marker where the protection was on and nothing where it was off, in the same step in which the
 * processor loses the translation. So a write went either through an entry whose protection was
 * off, and the scan that follows finds no marker, or it has not happened and waits.
 *
 * A huge OS page that the page table has in one entry is protected as one, and the first write to
 * it drops the entry; the kernel leaves no marker then. So there the order is the other way round:
 * once minor faults wait, an entry that still is protected can only be read through, as a write
 * drops it, faults, and waits. Nothing was written if it is found so, and what was read is true.
 *
 * Private memory has no other mapping by which it could be copied while its entries are gone. There
 * a second userfaultfd protects, whose protection the kernel does not take off by itself: who
 * writes waits, who reads does not, and the memory stays where it is. Whoever unmaps or remaps it
 * meanwhile, by a system call that the runtime does not see, does so with all it holds.
 *
 * It must be a userfaultfd that also holds up the kernel's accesses, those of system calls into the
 * program's buffers. One for user mode only would make them fail with EFAULT.
 */
#include "region.h"
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* linux/userfaultfd.h and linux/fs.h of 6.7, for older headers. */
#define FEATURE_MINOR_SHMEM (1ull << 10)
#define FEATURE_WP_SHMEM (1ull << 12)
#define FEATURE_WP_UNPOPULATED (1ull << 13)
#define FEATURE_WP_ASYNC (1ull << 15)
#define REGISTER_WP (1ull << 1)
#define REGISTER_MINOR (1ull << 2)
#define CATEGORY_WRITTEN (1ull << 1)
#define CATEGORY_PRESENT (1ull << 3)
#define CATEGORY_SWAPPED (1ull << 4) /* also where a marker of write protection is */
#define CATEGORY_HUGE (1ull << 6)
#define SCAN_PROTECT (1ull << 0)
#define SCAN_CHECK_ASYNC (1ull << 1)
struct scan_region {
    uint64_t start, end, categories;
};
struct scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define SCAN_IOCTL _IOWR('f', 16, struct scan)
#define DEVICE_NEW _IO(0xAA, 0)

#define FOUND_MAX 512u

static int watcher = -1; /* the userfaultfd: open while anything is tracked */
static int holder = -1;  /* another one, for private mappings: its protection holds up */
static int pagemap = -1;
static enum { UNKNOWN = 0, YES, NO } can_track;

/* By right, or by the device where an administrator lets us. */
int vmem_open_userfaultfd(uint64_t features) {
    /* Under any seccomp filter it is not tried: there are filters that kill for it. */
    if (syscall(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0))
        return -1;
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        int device = (int)syscall(SYS_openat, AT_FDCWD, "/dev/userfaultfd", O_RDWR | O_CLOEXEC, 0);
        if (device < 0)
            return -1;
        fd = (int)syscall(SYS_ioctl, device, DEVICE_NEW, O_CLOEXEC | O_NONBLOCK);
        syscall(SYS_close, device);
    }
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    if (fd >= 0 && syscall(SYS_ioctl, fd, UFFDIO_API, &api)) {
        syscall(SYS_close, fd);
        return -1;
    }
    return tcl_raise_fd(fd);
}

static int open_watcher(uint64_t more) {
    return vmem_open_userfaultfd(FEATURE_MINOR_SHMEM | FEATURE_WP_SHMEM | FEATURE_WP_UNPOPULATED |
                                 more);
}

/* A program that closes descriptors it does not know closes ours; its own file may have the number
 * now. Opened anew, it knows nothing of earlier mappings, and scans of those say so. */
bool vmem_is_userfaultfd(int fd) {
    struct uffdio_range nothing = {0, TCL_PAGE};
    return fd >= 0 && !syscall(SYS_ioctl, fd, UFFDIO_WAKE, &nothing);
}

bool vmem_can_track(void) {
    if (can_track == UNKNOWN) {
        int fd = open_watcher(FEATURE_WP_ASYNC);
        can_track = fd >= 0 ? YES : NO;
        watcher = fd;
    }
    return can_track == YES;
}

bool vmem_track_open(void) {
    if (!vmem_can_track())
        return false;
    if (!vmem_is_userfaultfd(watcher))
        watcher = open_watcher(FEATURE_WP_ASYNC);
    pagemap = tcl_raise_fd(
        (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0));
    return watcher >= 0 && pagemap >= 0;
}

void vmem_track_close(void) {
    if (pagemap >= 0)
        syscall(SYS_close, pagemap);
    pagemap = -1;
}

static bool mode(int fd, uintptr_t start, size_t bytes, uint64_t mode) {
    struct uffdio_register what = {.range = {start, bytes}, .mode = mode};
    return !syscall(SYS_ioctl, fd, UFFDIO_REGISTER, &what);
}

static bool scan(struct scan what, void (*each)(struct vmem_range, void *), void *context) {
    struct scan_region found[FOUND_MAX];
    uint64_t end = what.end;
    while (what.start < end) {
        what.size = sizeof(what);
        what.end = end;
        what.vec = (uintptr_t)found;
        what.vec_len = FOUND_MAX;
        long count = syscall(SYS_ioctl, pagemap, SCAN_IOCTL, &what);
        if (count < 0 || what.walk_end <= what.start)
            return false;
        for (long i = 0; i < count && each; i++)
            each((struct vmem_range){found[i].start, found[i].end}, context);
        what.start = what.walk_end;
    }
    return true;
}

bool vmem_scan(uintptr_t start, size_t bytes, void (*each)(struct vmem_range, void *),
               void *context) {
    struct scan what = {.flags = SCAN_PROTECT | SCAN_CHECK_ASYNC,
                        .start = start,
                        .end = start + bytes,
                        .category_mask = CATEGORY_WRITTEN,
                        .return_mask = CATEGORY_WRITTEN};
    return scan(what, each, context);
}

bool vmem_track(uintptr_t start, size_t bytes) {
    return mode(watcher, start, bytes, REGISTER_WP) && vmem_scan(start, bytes, NULL, NULL);
}

bool vmem_hold(uintptr_t start, size_t bytes, void (*each)(struct vmem_range, void *),
               void *context) {
    struct scan what = {.start = start,
                        .end = start + bytes,
                        .category_mask = CATEGORY_SWAPPED,
                        .category_inverted = CATEGORY_SWAPPED};
    if (!mode(watcher, start, bytes, REGISTER_WP | REGISTER_MINOR))
        return false;
    if (!syscall(SYS_madvise, start, bytes, MADV_DONTNEED_LOCKED) && scan(what, each, context))
        return true;
    vmem_untrack(start, bytes);
    return false;
}

/* Adds up what is found. */
static void add(struct vmem_range found, void *bytes) {
    *(size_t *)bytes += found.end - found.start;
}

/* All of it is mapped and has every category of `all`, but for those `inverted` has not, and, if
 * there are some in `any`, one of those. */
static bool is_all(uintptr_t start, size_t bytes, uint64_t inverted, uint64_t all, uint64_t any) {
    size_t found = 0;
    struct scan what = {.start = start,
                        .end = start + bytes,
                        .category_mask = all,
                        .category_inverted = inverted,
                        .category_anyof_mask = any,
                        .return_mask = all};
    return scan(what, add, &found) && found == bytes;
}

bool vmem_is_whole(uintptr_t start, size_t bytes) {
    return is_all(start, bytes, 0, CATEGORY_HUGE | CATEGORY_PRESENT, 0);
}

size_t vmem_look_for_memory(uintptr_t start, size_t bytes, bool *is_any) {
    struct scan_region first;
    struct scan what = {.size = sizeof(what),
                        .start = start,
                        .end = start + bytes,
                        .vec = (uintptr_t)&first,
                        .vec_len = 1,
                        .category_anyof_mask = CATEGORY_PRESENT | CATEGORY_SWAPPED,
                        .return_mask = CATEGORY_PRESENT};
    long count = syscall(SYS_ioctl, pagemap, SCAN_IOCTL, &what);
    *is_any = count != 0 && (count < 0 || first.start == start);
    return count <= 0 ? bytes : (*is_any ? first.end : first.start) - start;
}

bool vmem_is_unwritten(uintptr_t start, size_t bytes) {
    return is_all(start, bytes, CATEGORY_WRITTEN,
                  CATEGORY_HUGE | CATEGORY_PRESENT | CATEGORY_WRITTEN, 0);
}

bool vmem_hold_whole(uintptr_t start, size_t bytes, bool *is_alike) {
    if (!mode(watcher, start, bytes, REGISTER_WP | REGISTER_MINOR))
        return false;
    *is_alike = *is_alike && vmem_is_unwritten(start, bytes);
    if (*is_alike || !syscall(SYS_madvise, start, bytes, MADV_DONTNEED_LOCKED))
        return true;
    vmem_untrack(start, bytes);
    return false;
}

bool vmem_hold_private(uintptr_t start, size_t bytes) {
    struct uffdio_writeprotect what = {.range = {start, bytes},
                                       .mode = UFFDIO_WRITEPROTECT_MODE_WP};
    if (!vmem_is_userfaultfd(holder))
        holder = open_watcher(0);
    if (holder < 0 || !mode(holder, start, bytes, REGISTER_WP))
        return false;
    if (!syscall(SYS_ioctl, holder, UFFDIO_WRITEPROTECT, &what))
        return true;
    vmem_untrack(start, bytes);
    return false;
}

bool vmem_is_held_private(uintptr_t start, size_t bytes) {
    return is_all(start, bytes, CATEGORY_WRITTEN, CATEGORY_WRITTEN,
                  CATEGORY_PRESENT | CATEGORY_SWAPPED);
}

bool vmem_read(void *to, const void *from, size_t bytes) {
    struct iovec here = {to, bytes}, there = {(void *)from, bytes};
    long self = syscall(SYS_getpid);
    return syscall(SYS_process_vm_readv, self, &here, 1, &there, 1, 0) == (long)bytes;
}

/* In halves where something that cannot be registered lies between: the kernel then refuses all. */
void vmem_unregister(int one, int other, uintptr_t start, size_t bytes) {
    struct uffdio_range range = {start, bytes};
    size_t half = bytes / TCL_PAGE / 2 * TCL_PAGE;
    bool is_done = one >= 0 && !syscall(SYS_ioctl, one, UFFDIO_UNREGISTER, &range);
    is_done |= other >= 0 && !syscall(SYS_ioctl, other, UFFDIO_UNREGISTER, &range);
    if (is_done || !half)
        return;
    vmem_unregister(one, other, start, half);
    vmem_unregister(one, other, start + half, bytes - half);
}

void vmem_untrack(uintptr_t start, size_t bytes) {
    vmem_unregister(watcher, holder, start, bytes);
}

void vmem_wake(uintptr_t start, size_t bytes) {
    struct uffdio_range range = {start, bytes};
    syscall(SYS_ioctl, watcher, UFFDIO_WAKE, &range);
    if (holder >= 0)
        syscall(SYS_ioctl, holder, UFFDIO_WAKE, &range);
}

void vmem_track_forget(void) {
    if (watcher >= 0)
        syscall(SYS_close, watcher);
    if (holder >= 0)
        syscall(SYS_close, holder);
    vmem_track_close();
    watcher = holder = -1;
    can_track = UNKNOWN;
}
