/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc.h: the allocator, as the other parts of the runtime see it.
 * In: nothing. Out: the heap's range, its objects, its fork handlers. Knows nothing of records or
 * sites.
 */
#ifndef TCL_ALLOC_H
#define TCL_ALLOC_H

#include "../base.h"

/* True when the kernel accounts memory as soon as it is opened (RLIMIT_AS, RLIMIT_DATA, overcommit
 * mode 2): then none is opened ahead of need. Valid after the first allocation. */
TCL_HIDDEN extern bool tcl_frugal;

/* The reserved range: base address and OS pages; 0 OS pages when none could be reserved. */
TCL_HIDDEN void tcl_range(uintptr_t *base, size_t *pages);

/* Calls `visit` for every live object and block of the heap (not mmap objects). Takes heap locks;
 * fills the object table of a new session (at attach, in a forked child). `visit` must not
 * allocate. */
TCL_HIDDEN void tcl_heap_each(void (*visit)(const struct tcl_use *use, void *context),
                              void *context);

/* Calls `visit` for all memory of the heap that was opened, in a few ranges; what is not open among
 * it must do no harm. */
TCL_HIDDEN void tcl_heap_each_opened(void (*visit)(uintptr_t start, size_t bytes));

/* Asks the kernel to serve the range from `node` as far as it has free memory; false when it does
 * not, or `node` is below 0. */
TCL_HIDDEN bool tcl_os_bind(uintptr_t start, size_t bytes, int node);

/* Under a limit on address space, in bytes, that the program sets itself: gives back what the heap
 * has reserved beyond it. */
TCL_HIDDEN void tcl_heap_shrink(size_t limit);
/* The pages of the range, by number, that can have objects: [0, *small) and [*runs, *end). */
TCL_HIDDEN void tcl_range_parts(size_t *small, size_t *runs, size_t *end);

/* Fork handlers; init.c registers all of the runtime's once, in this order. */
TCL_HIDDEN void tcl_heap_before_fork(void), tcl_heap_after_fork_parent(void),
    tcl_heap_after_fork_child(void);

/* Bytes of the heap opened for runs, and bytes of blocks of small slots. */
TCL_HIDDEN size_t tcl_heap_open_bytes(void), tcl_small_bytes(void);
/* Has frees checked, where the environment asks for it; once, in the constructor. */
TCL_HIDDEN void tcl_secure_start(void);
/* Makes vregions of the memory that the heap has claimed so far. */
TCL_HIDDEN void tcl_heap_back(void);

/* True for memory that this malloc gave, small or large. */
TCL_HIDDEN bool tcl_heap_has(const void *p);

/* False where the program, or a library before this one, exports another malloc. The first call is
 * made as the program starts. */
TCL_HIDDEN bool tcl_is_our_malloc(void);

#endif
