/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * init.c: start-up of the runtime, and its fork handlers.
 * In: the loader's call. Out: the heap and, if requested, a session.
 * Knows nothing of how they work.
 *
 * The heap begins with the first malloc, which may come long before this constructor, or never;
 * parts that need a complete C library (keys, handlers, the session) wait for it.
 */
#include "alloc/heap.h"
#include <errno.h>

__thread bool tcl_in_fork;
bool tcl_forks_alone;

/* glibc's list of open streams. fork waits for it after all handlers. A thread that flushes the
 * streams holds it and may wait for one, whose holder may wait for the heap: so the list is locked
 * before the heap is (glibc does the same with its own heap, bug 19431). Its lock may be taken
 * twice by one thread. A process with one thread does not need it, and a signal handler may have
 * interrupted that thread while it took it. */
extern void _IO_list_lock(void) __attribute__((weak));
extern void _IO_list_unlock(void) __attribute__((weak));
extern void _IO_list_resetlock(void) __attribute__((weak));

static bool fork_holds_streams; /* under the list's lock */

/* How many forks the thread is in: a signal handler may fork while the thread it interrupted does.
 * The outer fork holds what its handlers have locked so far and goes on when the inner one is over,
 * so that the inner one's handlers have nothing to do, in the parent and in its child. */
static __thread unsigned forks_begun;

static void lock_streams(void) {
    if (forks_begun++)
        return;
    tcl_forks_alone = tcl_is_single_threaded() || tcl_vmem_has_only_own_threads();
    if (!_IO_list_lock || !_IO_list_unlock || !_IO_list_resetlock || tcl_forks_alone)
        return;
    _IO_list_lock();
    fork_holds_streams = true;
}

static void unlock_streams(void) {
    if (--forks_begun || !fork_holds_streams)
        return;
    fork_holds_streams = false;
    _IO_list_unlock();
}

static void reset_streams(void) {
    if (--forks_begun)
        return;
    if (fork_holds_streams)
        _IO_list_resetlock();
    fork_holds_streams = false;
}

static void before_fork(void) {
    if (forks_begun > 1)
        return;
    tcl_session_before_fork();
    tcl_heap_before_fork();
    tcl_vmem_before_fork();
    tcl_in_fork = true;
}

static void after_fork_parent(void) {
    if (forks_begun > 1)
        return;
    tcl_in_fork = false;
    tcl_locks_opened = false; /* locks are not inherited */
    tcl_vmem_after_fork_parent();
    tcl_heap_after_fork_parent();
    tcl_session_after_fork_parent();
}

static void after_fork_child(void) {
    if (forks_begun > 1)
        return;
    tcl_in_fork = false;
    tcl_vmem_after_fork_child();
    tcl_heap_after_fork_child();
    tcl_mark_after_fork_child();
    tcl_handles_after_fork_child();
    tcl_limit_start();
    tcl_session_after_fork_child();
    /* The process page is wiped already. The child attaches at its first birth, not here: most
     * children exec before that, and do not need a session. */
}

/* The program begins with errno 0, whatever was tried here. */
__attribute__((constructor(101))) static void start(void) {
    int saved = errno;
    tcl_small_may_start();
    tcl_mark_start();
    tcl_limit_start();
    tcl_secure_start();
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    tcl_is_our_malloc();
    tcl_session_start();
    /* The last one that is registered is the first before a fork, and the last after it. */
    pthread_atfork(lock_streams, unlock_streams, reset_streams);
    tcl_openmp_start();
    errno = saved;
}
