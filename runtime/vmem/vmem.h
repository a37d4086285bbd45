/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem.h: vregions, as the allocator and the interposed mmap family see them.
 * In: nothing. Out: vregions under the heap, and the calls that may meet a vregion. Knows nothing
 * of records.
 */
#ifndef TCL_VMEM_H
#define TCL_VMEM_H

#include "../base.h"

/* ---- Vregions under the heap (arena.c) ------------------------------------------------------- */

/* Makes the heap movable by this program from now on, including what exists. `pools`: its memory
 * comes from the daemon's pools from the beginning, while the program has one thread. */
TCL_HIDDEN void tcl_vmem_back_heap(bool pools);
/* True when the heap uses vregions. */
TCL_HIDDEN bool tcl_vmem_is_backing(void);
/* Puts a vregion under an empty piece of the heap (`live`: it may hold objects). Addresses up to
 * `open` may be used. False: the piece stays as it is. */
TCL_HIDDEN bool tcl_vmem_back(uintptr_t start, size_t bytes, uintptr_t open, int node, bool live);
/* Gives memory of the heap back; it reads as zero from now on, whatever is under it. -1 and errno:
 * its content is undefined. */
TCL_HIDDEN int tcl_os_clear(uintptr_t start, size_t bytes);
/* As madvise, of the heap or not. */
TCL_HIDDEN int tcl_os_madvise(void *start, size_t bytes, int advice);
/* As mprotect. Memory of the heap with unusual protection does not move. */
TCL_HIDDEN int tcl_vmem_rights(uintptr_t start, size_t bytes, int prot);
/* Sets the node that the heap's memory should be on. */
TCL_HIDDEN void tcl_vmem_rebind(uintptr_t start, size_t bytes, int node);
/* True when this process executes the daemon's moves. (remote_moves.c) */
TCL_HIDDEN bool tcl_vmem_is_mover(void);
/* True while it has not begun to: it begins once its heap is large enough. Call the function with
 * no lock held. */
TCL_HIDDEN extern _Atomic bool tcl_vmem_waits;
TCL_HIDDEN void tcl_vmem_serve_if_worth(void);

/* ---- Vregions of the program (region.c), called by init.c and track/map.c -------------------- */

TCL_HIDDEN void tcl_vmem_before_fork(void), tcl_vmem_after_fork_parent(void),
    tcl_vmem_after_fork_child(void);

/* True when a vregion overlaps the range; one load where there are none. */
TCL_HIDDEN bool tcl_vmem_any(uintptr_t start, size_t bytes);
/* Ends the vregions in the range, whose addresses are then without access. False and EINVAL: the
 * range cuts a vpage. */
TCL_HIDDEN bool tcl_vmem_cut(uintptr_t start, size_t bytes);
/* As mprotect, of vregions and what lies between them. */
TCL_HIDDEN int tcl_vmem_protect(uintptr_t start, size_t bytes, int prot);

#endif
