/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem.h: vregions, as the allocator and the interposed mmap family see them.
 * In: nothing. Out: vregions under the heap, and calls whose range may contain a vregion. Knows
 * nothing of records.
 */
#ifndef TCL_VMEM_H
#define TCL_VMEM_H

#include "../base.h"

/* ---- Vregions under the heap (arena.c) ------------------------------------------------------- */

/* From now on this process moves the heap itself, also the part that exists. */
TCL_HIDDEN void tcl_vmem_back_heap(void);
/* True when the heap uses vregions. */
TCL_HIDDEN bool tcl_vmem_is_backing(void);
/* Makes a part of the heap a vregion, if there is memory for its tables. */
TCL_HIDDEN void tcl_vmem_back(uintptr_t start, size_t bytes);
/* Releases memory of the heap, vregion or not; it reads as zero then. -1 and errno: its content is
 * undefined. */
TCL_HIDDEN int tcl_os_clear(uintptr_t start, size_t bytes);
/* As madvise, of the heap or not. */
TCL_HIDDEN int tcl_os_madvise(void *start, size_t bytes, int advice);
/* As mprotect. Memory of the heap that is not readable and writable is not moved. */
TCL_HIDDEN int tcl_vmem_set_rights(uintptr_t start, size_t bytes, int prot);
/* True when this process executes the daemon's moves. (self_moves.c) */
TCL_HIDDEN bool tcl_vmem_is_mover(void);
/* Returns when no move is under way; the next sees whether there is a filter. (self_moves.c) */
TCL_HIDDEN void tcl_vmem_await_move(void);
/* True when every thread but one is the runtime's. (process.c) */
TCL_HIDDEN bool tcl_vmem_has_only_own_threads(void);
/* True while the thread that does so waits for the heap to be large enough; then the function
 * starts it. Call it with no lock held. */
TCL_HIDDEN extern _Atomic bool tcl_vmem_start_pending;
TCL_HIDDEN void tcl_vmem_start_if_large(void);

/* ---- Vregions of the program (region.c), called by init.c and track/map.c -------------------- */

TCL_HIDDEN void tcl_vmem_before_fork(void), tcl_vmem_after_fork_parent(void),
    tcl_vmem_after_fork_child(void);

/* True when a vregion overlaps the range; one load where there are none. */
TCL_HIDDEN bool tcl_vmem_any(uintptr_t start, size_t bytes);
/* Ends the vregions in the range, whose addresses are then without access. False and EINVAL: the
 * range cuts a vpage. */
TCL_HIDDEN bool tcl_vmem_cut(uintptr_t start, size_t bytes);
/* As mprotect, of a range that has vregions. */
TCL_HIDDEN int tcl_vmem_protect(uintptr_t start, size_t bytes, int prot);

#endif
