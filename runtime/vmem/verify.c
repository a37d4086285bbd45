/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * verify.c: checks by the kernel whether a mapping still is as the runtime made it.
 * In: addresses, the place they should map, their rights. Out: how far that is so. Knows nothing of
 * moves or forks.
 *
 * A program may unmap, remap or protect a vregion by a raw system call, which bypasses map.c. The
 * runtime's tables are wrong then, and it must not map anything over such addresses: the program
 * may use them for something else.
 *
 * Linux reports mappings since 6.11 (PROCMAP_QUERY). Before, and under a seccomp filter, only holes
 * are detected.
 */
#include "region.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* linux/fs.h of 6.11, for older headers. */
struct procmap_query {
    uint64_t size, query_flags, query_addr;
    uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
    uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
    uint64_t vma_name_addr, build_id_addr;
};
#define QUERY_IOCTL _IOWR('f', 17, struct procmap_query)
#define QUERY_OR_NEXT 0x10
#define FLAGS_RIGHTS 7u /* as PROT_READ, PROT_WRITE, PROT_EXEC */
#define FLAGS_SHARED 8u

static int maps = -1;

void vmem_query_open(void) {
    tcl_assert_debug(vmem_is_locked() && maps < 0);
    if (!tcl_is_filtered())
        maps = tcl_raise_fd(
            (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0));
}

void vmem_query_close(void) {
    if (maps >= 0)
        syscall(SYS_close, maps);
    maps = -1;
}

static bool is_as_made(const struct procmap_query *found, uintptr_t at, vmem_place place,
                       int prot) {
    bool is_shared = found->vma_flags & FLAGS_SHARED;
    if (prot != VMEM_ANY_RIGHTS && (found->vma_flags & FLAGS_RIGHTS) != (unsigned)prot)
        return false;
    if (!place)
        return !found->inode && !is_shared;
    return found->inode == vmem_segments[vmem_segment_of(place)].inode &&
           found->vma_offset + (at - found->vma_start) == vmem_page_of(place) * TCL_PAGE &&
           is_shared == !(place & VMEM_FORKED);
}

size_t vmem_query_mapping(uintptr_t at, size_t bytes, vmem_place place, int prot, bool *is_so) {
    struct procmap_query found = {
        .size = sizeof(found), .query_flags = QUERY_OR_NEXT, .query_addr = at};
    if (maps >= 0 && !syscall(SYS_ioctl, maps, QUERY_IOCTL, &found)) {
        bool is_there = found.vma_start <= at;
        uintptr_t until = is_there ? found.vma_end : found.vma_start;
        *is_so = is_there && is_as_made(&found, at, place, prot);
        return until - at < bytes ? until - at : bytes;
    }
    /* No mapping there or above; or no query: msync fails for holes. */
    *is_so = !(maps >= 0 && errno == ENOENT) && !syscall(SYS_msync, at, bytes, MS_ASYNC);
    return bytes;
}

bool vmem_is_mapped_as(uintptr_t at, size_t bytes, vmem_place place, int prot) {
    bool is_so = true;
    for (size_t done = 0; is_so && done < bytes;) {
        vmem_place here = place ? place + done / TCL_PAGE : 0;
        done += vmem_query_mapping(at + done, bytes - done, here, prot, &is_so);
    }
    if (!is_so)
        errno = EFAULT;
    return is_so;
}
