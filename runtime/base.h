/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * base.h: what every part of the runtime uses: attributes, assertions, the kernel's own calls.
 * In: nothing. Out: macros and a few functions without state. Knows nothing of heaps, sessions or
 * vregions.
 *
 *   api/traits.c (tiercel_alloc)
 *       |
 *   alloc/malloc.c --+--> alloc/small.c (mimalloc, < 4 KiB) --blocks--+
 *                    +--> alloc/heap.c  (page runs, >= 4 KiB) --------+--> track/ring.c, session.c
 *   track/map.c (mmap, munmap, mremap interposed) --------------------+      |
 *                                    track/birth.c (which arena) --> track/site.c, phase.c
 *
 * Each folder has one header for the others (alloc/alloc.h, track/track.h, vmem/vmem.h) and one for
 * its own files (alloc/heap.h, track/session.h, vmem/region.h).
 *
 * Order of start-up: the constructor or the first malloc, whichever comes first, initialises the
 * heap; the session is attached in the constructor only. Events before that are not lost: the
 * daemon rescans the object table when a process attaches.
 */
#ifndef TCL_BASE_H
#define TCL_BASE_H

#include "../include/tiercel_wire.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TCL_HIDDEN __attribute__((visibility("hidden")))
#define TCL_EXPORT __attribute__((visibility("default")))
#define tcl_likely(x) __builtin_expect(!!(x), 1)
#define tcl_unlikely(x) __builtin_expect(!!(x), 0)

/* ---- Assertions, in three tiers --------------------------------------------------------------
 *
 *   tcl_assert            always compiled in: a breach means that the program's memory would be
 *                         corrupted. Never on a fast path.
 *   tcl_assert_debug      level 1: every runtime test. Cheap, on any path.
 *   tcl_assert_expensive  level 2: the tests that include the sources, under the sanitizers. May
 *                         walk whole structures.
 *
 * A breach writes one line to stderr and aborts. No assertion allocates or takes a lock. */
#ifndef TCL_ASSERT_LEVEL
#define TCL_ASSERT_LEVEL 0
#endif
TCL_HIDDEN void tcl_assert_failed(const char *what, const char *file, unsigned line)
    __attribute__((noreturn, cold));
#define tcl_assert(x) (tcl_likely(x) ? (void)0 : tcl_assert_failed(#x, __FILE__, __LINE__))
#define tcl_assert_nothing(x) ((void)sizeof(!(x)))
#if TCL_ASSERT_LEVEL >= 1
#define tcl_assert_debug(x) tcl_assert(x)
#else
#define tcl_assert_debug(x) tcl_assert_nothing(x)
#endif
#if TCL_ASSERT_LEVEL >= 2
#define tcl_assert_expensive(x) tcl_assert(x)
#else
#define tcl_assert_expensive(x) tcl_assert_nothing(x)
#endif

/* True between our fork handlers, for the forking thread: it holds every lock of the heap and of
 * vregions, and handlers of other libraries that run after ours may allocate. */
TCL_HIDDEN extern __thread bool tcl_in_fork;

/* True only while the process has one thread, as far as libc knows; false before glibc 2.32. */
static inline bool tcl_is_single_threaded(void) {
    extern char __libc_single_threaded __attribute__((weak));
    return &__libc_single_threaded && __libc_single_threaded;
}

/* Set for the time of a fork: the program has one thread, not counting those of the runtime. A lock
 * that is held is then held by what the forking signal handler interrupted. */
TCL_HIDDEN extern bool tcl_forks_alone;

/* True when a seccomp filter may kill the process for a call that the program would not make.
 * (track/seccomp.c) */
TCL_HIDDEN bool tcl_is_filtered(void);
/* True when the program, or its parent, may have installed one since it began. */
TCL_HIDDEN bool tcl_has_new_filter(void);

/* True when the calling thread holds `mutex`; for assertions only. Between the handlers of a fork
 * the forking thread holds every lock. */
TCL_HIDDEN bool tcl_is_held(const pthread_mutex_t *mutex);

/* One use of an address range; see tcl_record in tiercel_wire.h for (carve, generation). */
struct tcl_use {
    uintptr_t addr;
    size_t bytes; /* a multiple of TCL_PAGE */
    uint32_t site;
    uint32_t carve;
    uint16_t generation;
    uint8_t arena;
    uint8_t flags; /* enum tcl_record_flags */
};

/* Writes a line to stderr in one call, without stdio or malloc: why the program must end. */
TCL_HIDDEN void tcl_warn(const char *what);

/* A sealed memfd of `bytes` bytes, closed by exec; -1 and errno. (track/fd.c) */
TCL_HIDDEN int tcl_memfd(const char *name, size_t bytes);
/* Moves `fd` to a number above those that programs expect to get, if possible. Returns its number.
 */
TCL_HIDDEN int tcl_raise_fd(int fd);

/* As pthread_key_create, but never key 0, which is left to the program: some take it for "no key".
 * (keys.c) */
TCL_HIDDEN int tcl_key_create(pthread_key_t *key, void (*at_exit)(void *));

/* The kernel's own mmap family, past our interposers (raw system calls). (track/map.c) */
TCL_HIDDEN void *tcl_os_mmap(void *addr, size_t bytes, int prot, int flags, int fd, long offset);
TCL_HIDDEN int tcl_os_munmap(void *addr, size_t bytes);
TCL_HIDDEN void *tcl_os_mremap(void *addr, size_t old_bytes, size_t new_bytes, int flags, void *to);

#endif
