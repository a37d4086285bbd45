/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * segment.c: memory of nodes in segments, and the vpages in them.
 * In: requests by node and size; the pool server's segments, or memfds of this process.
 * Out: places. Knows nothing of what is mapped where.
 *
 * No descriptor is kept. A new segment is mapped twice, and everything later uses these windows:
 * mremap with an old size of 0 maps a piece of the shared one once more, mremap of a piece of the
 * private one moves it over a vregion.
 *
 * No place is reused with its old content. The memory of this process's own segments is freed at
 * once; memory of a pool stays, and is zeroed when it is taken, unless a copy will overwrite all of
 * it, as most do.
 */
#include "region.h"
#include <errno.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct vmem_segment vmem_segments[VMEM_SEGMENTS_MAX];

static unsigned segment_count; /* slots ever used */

/* Bits of a word of the bitmaps, uint64_t. */
#define WORD_BITS 64u

/* Preferred, as in the pool, because strict binding can trigger the out-of-memory killer. */
bool vmem_bind_preferred(void *start, size_t bytes, int node, unsigned flags) {
    unsigned long mask[VMEM_NODES_MAX / WORD_BITS] = {0};
    if (node < 0 || node >= VMEM_NODES_MAX)
        return false;
    mask[(size_t)node / WORD_BITS] = 1ul << (size_t)node % WORD_BITS;
    return !syscall(SYS_mbind, start, bytes, MPOL_PREFERRED, mask, VMEM_NODES_MAX + 1, flags);
}

bool vmem_map_place(uintptr_t at, vmem_place place, size_t bytes) {
    void *to = (void *)at;
    if (tcl_os_mremap(vmem_shared(place), 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
        return false;
    syscall(SYS_madvise, to, bytes, MADV_DODUMP);
    syscall(SYS_madvise, to, bytes, MADV_DONTFORK);
    return true;
}

/* At a multiple of 2 MiB, so that the page table can have huge OS pages in one entry each. */
static char *window(int fd, size_t bytes, int flags) {
    char *at = tcl_os_mmap(NULL, bytes + VMEM_UNIT, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    size_t head = -(uintptr_t)at % VMEM_UNIT;
    if (head)
        tcl_os_munmap(at, head);
    tcl_os_munmap(at + head + bytes, VMEM_UNIT - head);
    at += head;
    if (tcl_os_mmap(at, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE | MAP_FIXED, fd, 0) !=
        at) {
        tcl_os_munmap(at, bytes);
        return NULL;
    }
    syscall(SYS_madvise, at, bytes, MADV_DONTDUMP);
    return at;
}

static void unmap_segment(struct vmem_segment *segment) {
    size_t bytes = segment->pages * TCL_PAGE;
    if (segment->shared)
        tcl_os_munmap(segment->shared, bytes);
    if (segment->private)
        tcl_os_munmap(segment->private, bytes);
    if (segment->taken)
        tcl_os_munmap(segment->taken, segment->pages / 4);
    *segment = (struct vmem_segment){0};
}

/* Maps the memfd, and closes it in any case. */
static bool map_grant(struct vmem_segment *segment, const struct vmem_grant *grant, int node) {
    size_t bytes = grant->bytes;
    struct stat stat = {0};
    syscall(SYS_fstat, grant->memfd, &stat);
    *segment = (struct vmem_segment){.pages = bytes / TCL_PAGE,
                                     .node = node,
                                     .inode = stat.st_ino,
                                     .number = grant->number,
                                     .secret = grant->secret,
                                     .is_emulated = grant->is_emulated};
    segment->shared = window(grant->memfd, bytes, MAP_SHARED);
    segment->private = window(grant->memfd, bytes, MAP_PRIVATE);
    syscall(SYS_close, grant->memfd);
    void *bits = tcl_os_mmap(NULL, segment->pages / 4, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    segment->taken = bits == MAP_FAILED ? NULL : bits;
    segment->stale = segment->taken + segment->pages / WORD_BITS;
    if (segment->shared && segment->private && segment->taken)
        return true;
    if (segment->number)
        vmem_pool_return(segment->number, segment->secret, false);
    unmap_segment(segment);
    errno = ENOMEM;
    return false;
}

/* Of `bytes`, or of `usual` if that is more and available. */
static struct vmem_segment *new_segment(int node, size_t bytes, size_t usual, bool huge) {
    unsigned slot = 0;
    struct vmem_grant grant = {0};
    while (slot < segment_count && vmem_segments[slot].shared)
        slot++;
    if (slot == VMEM_SEGMENTS_MAX) {
        errno = ENOMEM;
        return NULL;
    }
    size_t rounded = (bytes + VMEM_UNIT - 1) / VMEM_UNIT * VMEM_UNIT;
    grant.bytes = rounded < usual ? usual : rounded;
    errno = 0;
    bool is_granted = vmem_pool_grant(node, grant.bytes, huge, &grant) ||
                      (grant.bytes > rounded && vmem_pool_grant(node, rounded, huge, &grant));
    if (!is_granted &&
        (errno == ENOMEM || (grant.memfd = tcl_memfd("tiercel-vmem", grant.bytes)) < 0))
        return NULL; /* an exhausted pool must not be bypassed */
    struct vmem_segment *segment = &vmem_segments[slot];
    if (!map_grant(segment, &grant, node))
        return NULL;
    if (!is_granted)
        segment->is_emulated = !vmem_bind_preferred(segment->shared, grant.bytes, node, 0);
    segment->is_huge = huge;
    if (huge)
        syscall(SYS_madvise, segment->shared, grant.bytes, MADV_HUGEPAGE);
    if (slot == segment_count)
        segment_count++;
    return segment;
}

static bool test_bit(const uint64_t *bits, size_t page) {
    return bits[page / WORD_BITS] >> page % WORD_BITS & 1;
}

static bool is_taken(const struct vmem_segment *segment, size_t page) {
    return test_bit(segment->taken, page);
}

static void set_bits(uint64_t *bits, size_t page, size_t count, bool is_so) {
    for (size_t i = page; i < page + count; i++) {
        uint64_t bit = 1ull << i % WORD_BITS;
        bits[i / WORD_BITS] = is_so ? bits[i / WORD_BITS] | bit : bits[i / WORD_BITS] & ~bit;
    }
}

static void mark(struct vmem_segment *segment, size_t page, size_t count, bool taken) {
    tcl_assert(page + count <= segment->pages);
    /* What is taken was free, and what is freed was taken: no vpage has two owners. */
    for (size_t i = page; TCL_ASSERT_LEVEL >= 1 && i < page + count; i++)
        tcl_assert_debug(is_taken(segment, i) != taken);
    set_bits(segment->taken, page, count, taken);
    segment->taken_pages += taken ? count : -count;
}

/* First free run of `count` OS pages in [from, to); SIZE_MAX: none. */
static size_t find_free(const struct vmem_segment *segment, size_t from, size_t to, size_t count,
                        size_t align) {
    size_t page = (from + align - 1) / align * align, found = 0;
    while (page + count <= to) {
        while (found < count && !is_taken(segment, page + found))
            found++;
        if (found == count)
            return page;
        page = (page + found + align) / align * align;
        found = 0;
    }
    return SIZE_MAX;
}

static void zero_pages(struct vmem_segment *segment, size_t page, size_t count) {
    char *start = segment->shared + page * TCL_PAGE;
    memset(start, 0, count * TCL_PAGE);
    syscall(SYS_madvise, start, count * TCL_PAGE, MADV_DONTNEED);
    set_bits(segment->stale, page, count, false);
}

/* Keeps memory of a pool for later zeroing, except what the kernel moved to another node. */
static void scrub(struct vmem_segment *segment, vmem_place place, size_t bytes) {
    char *start = vmem_shared(place);
    bool is_home = vmem_node_of(place) == segment->node;
    if (!is_home)
        vmem_bind_preferred(start, bytes, segment->node, 0);
    if (segment->number && is_home)
        set_bits(segment->stale, vmem_page_of(place), bytes / TCL_PAGE, true);
    else if (syscall(SYS_madvise, start, bytes, MADV_REMOVE))
        zero_pages(segment, vmem_page_of(place), bytes / TCL_PAGE);
}

static vmem_place take_from(struct vmem_segment *segment, size_t count, size_t align, bool zeroed) {
    if (segment->pages - segment->taken_pages < count)
        return 0;
    size_t page = find_free(segment, segment->hint, segment->pages, count, align);
    if (page == SIZE_MAX)
        page = find_free(segment, 0, segment->pages, count, align);
    if (page == SIZE_MAX)
        return 0;
    mark(segment, page, count, true);
    segment->hint = page + count;
    for (size_t at = page, run; zeroed && at < page + count; at += run) {
        bool is_stale = test_bit(segment->stale, at);
        for (run = 1; at + run < page + count && test_bit(segment->stale, at + run) == is_stale;)
            run++;
        if (is_stale)
            zero_pages(segment, at, run);
    }
    return vmem_place_of((unsigned)(segment - vmem_segments), page);
}

vmem_place vmem_take(int node, size_t bytes, size_t align, bool zeroed) {
    tcl_assert_debug(vmem_is_locked() && bytes > 0 && bytes % TCL_PAGE == 0);
    size_t count = bytes / TCL_PAGE, step = align / TCL_PAGE;
    bool huge = align >= VMEM_UNIT;
    for (unsigned i = 0; i < segment_count; i++) {
        struct vmem_segment *segment = &vmem_segments[i];
        if (!segment->shared || segment->is_frozen || segment->node != node ||
            segment->is_huge != huge)
            continue;
        vmem_place place = take_from(segment, count, step ? step : 1, zeroed);
        if (place)
            return place;
    }
    struct vmem_segment *segment = new_segment(node, bytes, VMEM_SEGMENT_BYTES, huge);
    return segment ? take_from(segment, count, step ? step : 1, zeroed) : 0;
}

void vmem_give(vmem_place place, size_t bytes) {
    struct vmem_segment *segment = &vmem_segments[vmem_segment_of(place)];
    tcl_assert(segment->shared != NULL);
    tcl_assert_debug(vmem_is_locked());
    mark(segment, vmem_page_of(place), bytes / TCL_PAGE, false);
    if (segment->taken_pages > 0) {
        if (!segment->is_frozen)
            scrub(segment, place, bytes);
        return;
    }
    uint32_t number = segment->number;
    uint64_t secret = segment->secret;
    bool is_shared = segment->is_frozen;
    unmap_segment(segment);
    if (number)
        vmem_pool_return(number, secret, is_shared);
}

bool vmem_is_any_segment(void) {
    return segment_count > 0;
}

void vmem_freeze(void) {
    for (unsigned i = 0; i < segment_count; i++)
        if (vmem_segments[i].shared)
            vmem_segments[i].is_frozen = true;
}

void vmem_close_windows(void) {
    for (unsigned i = 0; i < segment_count; i++) {
        struct vmem_segment *segment = &vmem_segments[i];
        if (segment->shared)
            tcl_os_mmap(segment->shared, segment->pages * TCL_PAGE, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        segment->number = 0; /* the parent's, which will return it */
    }
}
