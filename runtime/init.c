/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * init.c: start-up of the runtime, and its fork handlers.
 * In: the loader's call. Out: the heap and, if requested, a session.
 * Knows nothing of how they work.
 *
 * The heap works from the first malloc on, which may come long before this constructor; parts that
 * need a complete C library (keys, handlers, the session) wait for it.
 */
#include "alloc/heap.h"

__thread bool tcl_in_fork;

static void before_fork(void) {
    tcl_heap_before_fork();
    tcl_vmem_before_fork();
    tcl_in_fork = true;
}

static void after_fork_parent(void) {
    tcl_in_fork = false;
    tcl_vmem_after_fork_parent();
    tcl_heap_after_fork_parent();
}

static void after_fork_child(void) {
    tcl_in_fork = false;
    tcl_vmem_after_fork_child();
    tcl_heap_after_fork_child();
    /* The life page is wiped already. The child attaches at its first birth, not here: most
     * children exec before that, and do not need a session. */
}

__attribute__((constructor(101))) static void start(void) {
    tcl_heap_init();
    tcl_small_start();
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    tcl_session_start();
    tcl_openmp_start();
}
