/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_untracked.c: an empty tracking half of the runtime, for tests of the allocator alone.
 * In: calls of the allocator. Out: nothing is tracked. Knows nothing of sessions.
 */
#include "../alloc/alloc.h"
#include "../track/track.h"
#include "../vmem/vmem.h"
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic uint32_t carve;

bool tcl_tracking(void) {
    return false;
}
void tcl_note_born(const struct tcl_use *use) {
    (void)use;
}
void tcl_note_died(const struct tcl_use *use) {
    (void)use;
}
void tcl_note_resized(const struct tcl_use *use) {
    (void)use;
}
struct tcl_birth tcl_birth_here(size_t bytes, void *return_address, void *frame_address) {
    (void)bytes, (void)return_address, (void)frame_address;
    return (struct tcl_birth){0, 0};
}
unsigned tcl_birth_arena(size_t bytes, uint32_t site) {
    (void)bytes, (void)site;
    return 0;
}
void tcl_birth_refund(unsigned arena, size_t bytes) {
    (void)arena, (void)bytes;
}
size_t tcl_birth_head(size_t bytes, uint32_t site, unsigned arena, unsigned *better) {
    (void)bytes, (void)site, (void)arena, (void)better;
    return 0;
}
_Atomic bool tcl_vmem_start_pending;
void tcl_vmem_start_if_large(void) {}
bool tcl_birth_is_planned(void) {
    return false;
}
void tcl_note_idle(unsigned arena, size_t bytes) {
    (void)arena, (void)bytes;
}
uint64_t tcl_fast_nodes(void) {
    return 0;
}
bool tcl_is_filtered(void) {
    return false;
}
void tcl_birth_charge(unsigned arena, size_t bytes) {
    (void)arena, (void)bytes;
}
unsigned tcl_small_arena(void) {
    return 0;
}
int tcl_arena_node(unsigned arena) {
    (void)arena;
    return TCL_NODE_NONE;
}
uint32_t tcl_next_carve(void) {
    return ++carve;
}
void tcl_session_start(void) {}
void tcl_session_before_fork(void) {}
void tcl_session_after_fork_parent(void) {}
void tcl_openmp_start(void) {}
void *tcl_os_mmap(void *addr, size_t bytes, int prot, int flags, int fd, long offset) {
    return (void *)syscall(SYS_mmap, addr, bytes, prot, flags, fd, offset);
}
int tcl_os_munmap(void *addr, size_t bytes) {
    return (int)syscall(SYS_munmap, addr, bytes);
}
void *tcl_os_mremap(void *addr, size_t old_bytes, size_t new_bytes, int flags, void *to) {
    return (void *)syscall(SYS_mremap, addr, old_bytes, new_bytes, flags, to);
}
bool tcl_vmem_is_backing(void) {
    return false;
}
void tcl_vmem_back(uintptr_t start, size_t bytes) {
    (void)start, (void)bytes;
}
int tcl_os_clear(uintptr_t start, size_t bytes) {
    return (int)syscall(SYS_madvise, start, bytes, MADV_DONTNEED);
}
int tcl_os_madvise(void *start, size_t bytes, int advice) {
    return (int)syscall(SYS_madvise, start, bytes, advice);
}
void tcl_vmem_before_fork(void) {}
void tcl_vmem_after_fork_parent(void) {}
void tcl_vmem_after_fork_child(void) {}
