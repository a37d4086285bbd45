/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * heap_range.c: determines how much address space may be reserved; reserves it, or gives it back.
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

#define FIRST_BLOCKS ((size_t)2 << 20) /* a huge OS page of x86-64 */

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

/* Under a limit on address space the heap takes a quarter, and leaves the rest to stacks, libraries
 * and the program's own mappings; heap_far.c serves what does not fit. Chosen, not measured. */
static size_t range_under(size_t limit) {
    size_t bytes = TCL_RANGE_MAX;
    while (bytes > limit / 4)
        bytes /= 2;
    return bytes;
}

/* Tables are written here and there, and so are the first blocks of a small program: huge OS pages
 * would take 4 MiB for what fits into 100 KiB. A kernel without them refuses, which is as good. */
static void use_small_pages(uintptr_t start, size_t bytes) {
    syscall(SYS_madvise, start, bytes, MADV_NOHUGEPAGE);
}

static size_t table_bytes(size_t bytes) {
    return (bytes >> PAGE_SHIFT) * sizeof(struct run);
}

bool tcl_range_reserve(struct range *range, size_t least, size_t align) {
    int saved = errno;
    struct rlimit space = {RLIM_INFINITY, RLIM_INFINITY}, data = space;
    getrlimit(RLIMIT_AS, &space);
    getrlimit(RLIMIT_DATA, &data);
    tcl_frugal =
        space.rlim_cur != RLIM_INFINITY || data.rlim_cur != RLIM_INFINITY || never_overcommits();
    for (size_t bytes = range_under(space.rlim_cur); bytes >= least; bytes /= 2) {
        size_t table = table_bytes(bytes);
        size_t slices = (bytes / 2 >> SLICE_SHIFT) * sizeof(void *);
        char *base = reserve(bytes + align);
        char *beside = base ? reserve(table + slices) : NULL;
        if (!beside) {
            if (base)
                tcl_os_munmap(base, bytes + align);
            continue;
        }
        range->base = ((uintptr_t)base + align - 1) & ~(align - 1);
        range->runs = range->base + bytes / 2;
        range->small_bytes = range->run_bytes = bytes / 2;
        range->pages = bytes >> PAGE_SHIFT;
        range->table = (struct run *)beside;
        range->slices = (void **)(beside + table);
        use_small_pages((uintptr_t)beside, table + slices);
        use_small_pages(range->base, FIRST_BLOCKS);
        break;
    }
    errno = saved;
    return range->base != 0;
}

static void release(uintptr_t start, uintptr_t end) {
    if (end > start)
        tcl_os_munmap((void *)start, end - start);
}

/* Lowers *bytes of a part of the range that begins at `start`, and releases the rest with its
 * metadata. Other mappings may take the addresses at once, so they leave the heap first. */
static void shrink_part(struct range *range, uintptr_t start, size_t *bytes, size_t keep) {
    size_t was = *bytes;
    if (keep >= was)
        return;
    __atomic_store_n(bytes, keep, __ATOMIC_SEQ_CST);
    uintptr_t table = (uintptr_t)range->table + table_bytes(start - range->base);
    release(start + keep, start + was);
    release(table + table_bytes(keep), table + table_bytes(was));
}

void tcl_range_shrink(struct range *range, size_t limit, size_t align, uintptr_t next_small,
                      uintptr_t next_runs) {
    int saved = errno;
    size_t most = range_under(limit) / 2 & -align;
    size_t small = next_small - range->base, runs = next_runs - range->runs;
    uintptr_t slices = (uintptr_t)range->slices;
    size_t before = (range->small_bytes >> SLICE_SHIFT) * sizeof(void *);
    tcl_frugal = true;
    shrink_part(range, range->base, &range->small_bytes, small > most ? small : most);
    shrink_part(range, range->runs, &range->run_bytes, runs > most ? runs : most);
    size_t after = (range->small_bytes >> SLICE_SHIFT) * sizeof(void *);
    release(slices + ((after + PAGE - 1) & -PAGE), slices + before);
    errno = saved;
}

void tcl_range_parts(size_t *small, size_t *runs, size_t *end) {
    *small = tcl_heap_range.small_bytes >> PAGE_SHIFT;
    *runs = (tcl_heap_range.runs - tcl_heap_range.base) >> PAGE_SHIFT;
    *end = *runs + (tcl_heap_range.run_bytes >> PAGE_SHIFT);
}
