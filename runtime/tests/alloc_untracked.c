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

#ifndef ALLOC_BY_SITE /* else the test says whose births small objects are */
bool tcl_tracking(void) {
    return false;
}
uint32_t tcl_small_site(void *return_address, void *frame_address) {
    (void)return_address, (void)frame_address;
    return 0;
}
_Atomic uint32_t tcl_calls_forgotten;
bool tcl_call_learn(uintptr_t return_address, uintptr_t frame, struct tcl_call *call) {
    (void)return_address, (void)frame, (void)call;
    return false;
}
int64_t tcl_small_gap(uint64_t *random) {
    *random = 1;
    return INT64_MAX;
}
bool tcl_small_born(const void *p, size_t bytes, uint32_t site) {
    (void)p, (void)bytes, (void)site;
    return false;
}
void tcl_small_died(const void *p) {
    (void)p;
}
void tcl_remark(enum tcl_remark remark) {
    (void)remark;
}
#endif
void tcl_note_born(const struct tcl_use *use) {
    (void)use;
}
void tcl_note_died(const struct tcl_use *use) {
    (void)use;
}
void tcl_note_head(const struct tcl_use *use, struct tcl_head head) {
    (void)use, (void)head;
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
struct tcl_split tcl_birth_split(size_t bytes, uint32_t site, unsigned arena) {
    (void)bytes, (void)site, (void)arena;
    return (struct tcl_split){0};
}
_Atomic bool tcl_vmem_start_pending;
void tcl_vmem_start_if_large(void) {}
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
unsigned tcl_small_arena(uint32_t site) {
    (void)site;
    return 0;
}
unsigned tcl_heat_arena(enum tcl_temperature heat) {
    (void)heat;
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
