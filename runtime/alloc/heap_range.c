/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * heap_range.c: determines how much address space may be reserved, and reserves it.
 * In: the limits of the process and the kernel's overcommit mode. Out: struct range, tcl_frugal.
 * Knows nothing of what the range is used for.
 */
#include "heap.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

bool tcl_frugal;

/* Raw calls: the program may have replaced open and read with functions that allocate. */
static bool never_overcommits(void) {
    char mode = '0';
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/sys/vm/overcommit_memory",
                          O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return false;
    long got = syscall(SYS_read, fd, &mode, 1);
    syscall(SYS_close, fd);
    return got == 1 && mode == '2';
}

static void *reserve(size_t bytes) {
    void *p =
        tcl_os_mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

bool tcl_range_reserve(struct range *range, size_t least, size_t align) {
    int saved = errno;
    size_t bytes = TCL_RANGE_MAX;
    struct rlimit space = {RLIM_INFINITY, RLIM_INFINITY}, data = space;
    getrlimit(RLIMIT_AS, &space);
    getrlimit(RLIMIT_DATA, &data);
    tcl_frugal =
        space.rlim_cur != RLIM_INFINITY || data.rlim_cur != RLIM_INFINITY || never_overcommits();
    /* Under a limit on address space the heap takes a quarter, and leaves the rest to stacks,
     * libraries and the program's own mappings; heap_far.c serves what does not fit. Chosen, not
     * measured. */
    while (space.rlim_cur != RLIM_INFINITY && bytes > space.rlim_cur / 4)
        bytes /= 2;
    for (; bytes >= least; bytes /= 2) {
        size_t table = (bytes >> PAGE_SHIFT) * sizeof(struct run);
        size_t slices = (bytes / 2 >> SLICE_SHIFT) * sizeof(void *);
        char *base = reserve(bytes + align);
        char *beside = base ? reserve(table + slices) : NULL;
        if (!beside) {
            if (base)
                tcl_os_munmap(base, bytes + align);
            continue;
        }
        range->base = ((uintptr_t)base + align - 1) & ~(align - 1);
        range->small_bytes = bytes / 2;
        range->bytes = bytes;
        range->table = (struct run *)beside;
        range->slices = (void **)(beside + table);
        break;
    }
    errno = saved;
    return range->base != 0;
}
