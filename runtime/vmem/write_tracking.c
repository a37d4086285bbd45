/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * write_tracking.c: tracks writes to mappings, and holds up accesses to them.
 * In: ranges of addresses. Out: the ranges that were written; periods in which no thread reads or
 * writes. Knows nothing of segments or vregions.
 *
 * It uses two features of one userfaultfd. Asynchronous write protection (Linux 6.7): the kernel
 * itself removes the protection at a write, and PAGEMAP_SCAN reports where it is off and restores
 * it, OS page by OS page and atomically. Minor faults: once the page table entries of a mapping are
 * dropped, every access waits until it is woken.
 *
 * The order of steps in vmem_hold makes the result exact. Dropping an entry (MADV_DONTNEED) leaves
 * a marker where the protection was on and nothing where it was off, in the same step in which the
 * processor loses the translation. So a write either went through an entry whose protection was
 * off, and the scan that follows finds no marker, or it has not happened and waits.
 *
 * A huge OS page with one entry in the page table is protected as one, and the first write to it
 * drops the entry without leaving a marker. There the order is reversed: once minor faults wait, an
 * entry that is still protected allows only reads, because a write drops it, faults, and waits. If
 * it is found so, nothing was written, and the copy is valid.
 *
 * Private memory has no other mapping by which it could be copied while its entries are gone. There
 * a second userfaultfd protects synchronously: writes wait, reads do not, and the memory stays
 * where it is. A system call that unmaps or remaps it meanwhile, unseen by the runtime, removes the
 * protection, too.
 *
 * The userfaultfd must also hold up the kernel's own accesses, those of system calls to the
 * program's buffers. With UFFD_USER_MODE_ONLY they would fail with EFAULT.
 */
#include "region.h"
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
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

#define FOUND_MAX 512u /* the OS pages of a piece; 12 KiB of stack */

static int tracker = -1; /* asynchronous; open while anything is tracked */
static int holder = -1;  /* synchronous, for private mappings */
static int pagemap = -1;
static enum { UNKNOWN = 0, YES, NO } can_track;

/* By the system call, or by the device, if the process may use either. */
int vmem_open_userfaultfd(uint64_t features) {
    /* Not under a seccomp filter, because some filters kill for the call. */
    if (tcl_is_filtered())
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

static int open_tracker(uint64_t more) {
    return vmem_open_userfaultfd(FEATURE_MINOR_SHMEM | FEATURE_WP_SHMEM | FEATURE_WP_UNPOPULATED |
                                 more);
}

/* The program may have closed it, and its own file may have the number now. A new userfaultfd has
 * no earlier mapping registered, and scans of those fail. */
bool vmem_is_userfaultfd(int fd) {
    struct uffdio_range nothing = {0, TCL_PAGE};
    return fd >= 0 && !syscall(SYS_ioctl, fd, UFFDIO_WAKE, &nothing);
}

bool vmem_can_track(void) {
    if (can_track == UNKNOWN) {
        int fd = open_tracker(FEATURE_WP_ASYNC);
        can_track = fd >= 0 ? YES : NO;
        tracker = fd;
    }
    return can_track == YES;
}

bool vmem_pagemap_open(void) {
    tcl_assert_debug(vmem_is_locked() && pagemap < 0);
    pagemap = tcl_raise_fd(
        (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0));
    return pagemap >= 0;
}

bool vmem_track_open(void) {
    if (!vmem_can_track())
        return false;
    if (!vmem_is_userfaultfd(tracker))
        tracker = open_tracker(FEATURE_WP_ASYNC);
    if (tracker >= 0 && vmem_pagemap_open())
        return true;
    vmem_track_close();
    return false;
}

void vmem_track_close(void) {
    if (pagemap >= 0)
        syscall(SYS_close, pagemap);
    pagemap = -1;
}

static bool register_range(int fd, uintptr_t start, size_t bytes, uint64_t mode) {
    struct uffdio_register what = {.range = {start, bytes}, .mode = mode};
    return !syscall(SYS_ioctl, fd, UFFDIO_REGISTER, &what);
}

static bool scan(struct scan what, void (*each)(struct vmem_range, void *), void *context) {
    tcl_assert_debug(pagemap >= 0); /* between vmem_track_open and vmem_track_close */
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
    return register_range(tracker, start, bytes, REGISTER_WP) &&
           vmem_scan(start, bytes, NULL, NULL);
}

bool vmem_hold(uintptr_t start, size_t bytes, void (*each)(struct vmem_range, void *),
               void *context) {
    struct scan what = {.start = start,
                        .end = start + bytes,
                        .category_mask = CATEGORY_SWAPPED,
                        .category_inverted = CATEGORY_SWAPPED};
    if (!register_range(tracker, start, bytes, REGISTER_WP | REGISTER_MINOR))
        return false;
    if (!syscall(SYS_madvise, start, bytes, MADV_DONTNEED_LOCKED) && scan(what, each, context))
        return true;
    vmem_untrack(start, bytes);
    return false;
}

static void add(struct vmem_range found, void *bytes) {
    *(size_t *)bytes += found.end - found.start;
}

/* True when all of it is mapped, has every category of `all` (lacks those that are in `inverted`,
 * too), and one of `any`, if there are any. */
static bool has_categories(uintptr_t start, size_t bytes, uint64_t inverted, uint64_t all,
                           uint64_t any) {
    size_t found = 0;
    struct scan what = {.start = start,
                        .end = start + bytes,
                        .category_mask = all,
                        .category_inverted = inverted,
                        .category_anyof_mask = any,
                        .return_mask = all};
    return scan(what, add, &found) && found == bytes;
}

bool vmem_is_huge_entry(uintptr_t start, size_t bytes) {
    return has_categories(start, bytes, 0, CATEGORY_HUGE | CATEGORY_PRESENT, 0);
}

size_t vmem_find_memory(uintptr_t start, size_t bytes, bool *is_any) {
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
    return has_categories(start, bytes, CATEGORY_WRITTEN,
                          CATEGORY_HUGE | CATEGORY_PRESENT | CATEGORY_WRITTEN, 0);
}

bool vmem_hold_huge(uintptr_t start, size_t bytes, bool *is_equal) {
    if (!register_range(tracker, start, bytes, REGISTER_WP | REGISTER_MINOR))
        return false;
    *is_equal = *is_equal && vmem_is_unwritten(start, bytes);
    if (*is_equal || !syscall(SYS_madvise, start, bytes, MADV_DONTNEED_LOCKED))
        return true;
    vmem_untrack(start, bytes);
    return false;
}

bool vmem_hold_private(uintptr_t start, size_t bytes) {
    struct uffdio_writeprotect what = {.range = {start, bytes},
                                       .mode = UFFDIO_WRITEPROTECT_MODE_WP};
    if (!vmem_is_userfaultfd(holder))
        holder = open_tracker(0);
    if (holder < 0 || !register_range(holder, start, bytes, REGISTER_WP))
        return false;
    if (!syscall(SYS_ioctl, holder, UFFDIO_WRITEPROTECT, &what))
        return true;
    vmem_untrack(start, bytes);
    return false;
}

bool vmem_is_held_private(uintptr_t start, size_t bytes) {
    return has_categories(start, bytes, CATEGORY_WRITTEN, CATEGORY_WRITTEN,
                          CATEGORY_PRESENT | CATEGORY_SWAPPED);
}

bool vmem_read(void *to, const void *from, size_t bytes) {
    struct iovec here = {to, bytes}, there = {(void *)from, bytes};
    long self = syscall(SYS_getpid);
    return syscall(SYS_process_vm_readv, self, &here, 1, &there, 1, 0) == (long)bytes;
}

/* The kernel refuses a range with a part that cannot be registered: by halves, as far as possible.
 */
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
    vmem_unregister(tracker, holder, start, bytes);
}

void vmem_wake(uintptr_t start, size_t bytes) {
    struct uffdio_range range = {start, bytes};
    syscall(SYS_ioctl, tracker, UFFDIO_WAKE, &range);
    if (holder >= 0)
        syscall(SYS_ioctl, holder, UFFDIO_WAKE, &range);
}

void vmem_track_forget(void) {
    if (tracker >= 0)
        syscall(SYS_close, tracker);
    if (holder >= 0)
        syscall(SYS_close, holder);
    vmem_track_close();
    tracker = holder = -1;
    can_track = UNKNOWN;
}
