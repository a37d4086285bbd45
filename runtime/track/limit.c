/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * limit.c: limits on address space that are set while the program runs hold for what it has.
 * In: setrlimit and prlimit, interposed; the limit, when the heap has opened memory or a mapping
 * failed. Out: less reserved. Knows nothing of how the heap is laid out.
 *
 * RLIMIT_AS counts addresses, used or not. The runtime has reserved a terabyte of them: under a
 * limit that is set later, no thread would start and no library would load, while the heap, which
 * opens what it has reserved, would never meet the limit. So what the limit does not leave is given
 * back. A limit that was there when the program began is honoured by heap_range.c. One that is set
 * by a raw system call, or by another process, is found when the heap opens more memory or the
 * program's mmap fails. Until then no thread starts, and no library loads.
 */
#include "session.h"
#include <errno.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A session has TCL_RUNS_AT bytes of addresses, some 150 MiB: a limit must be so many times that
 * for a process to attach under it. Chosen, not measured. */
#define SESSION_SHARE 16

_Atomic bool tcl_limit_due;

static uint32_t own_pid; /* a child of vfork sets limits of its own, but shares this memory */
static _Atomic rlim_t known = RLIM_INFINITY; /* on address space, as far as it was seen */

static bool is_own_process(void) {
    return (uint32_t)syscall(SYS_getpid) == own_pid;
}

static rlim_t limit_now(void) {
    struct rlimit limit;
    long failed = syscall(SYS_prlimit64, 0, RLIMIT_AS, NULL, &limit);
    return failed ? RLIM_INFINITY : limit.rlim_cur;
}

void tcl_limit_start(void) {
    own_pid = (uint32_t)syscall(SYS_getpid);
    atomic_store(&known, limit_now());
}

static void shrink(rlim_t limit) {
    bool has_room = limit / SESSION_SHARE >= TCL_RUNS_AT;
    tcl_session_limit(has_room);
    tcl_heap_shrink(limit);
    tcl_session_shrink();
}

bool tcl_limit_look(void) {
    int saved = errno;
    atomic_store(&tcl_limit_due, false);
    /* A new filter may kill for the call. */
    if (tcl_in_fork || tcl_has_new_filter() || !is_own_process())
        return false;
    rlim_t now = limit_now(), before = atomic_exchange(&known, now);
    if (now < before)
        shrink(now);
    errno = saved;
    return now < before;
}

static int set(pid_t pid, int resource, const struct rlimit *limit, struct rlimit *old) {
    int result = (int)syscall(SYS_prlimit64, pid, resource, limit, old);
    if (result || !limit || limit->rlim_cur == RLIM_INFINITY)
        return result;
    int saved = errno;
    if (is_own_process() && (pid == 0 || (uint32_t)pid == own_pid)) {
        if (resource == RLIMIT_AS) {
            atomic_store(&known, limit->rlim_cur);
            shrink(limit->rlim_cur);
        } else if (resource == RLIMIT_DATA) {
            tcl_frugal = true;
        }
    }
    errno = saved;
    return result;
}

TCL_EXPORT int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit) {
    return set(0, (int)resource, limit, NULL);
}

TCL_EXPORT int prlimit(pid_t pid, enum __rlimit_resource resource, const struct rlimit *limit,
                       struct rlimit *old) {
    return set(pid, (int)resource, limit, old);
}

_Static_assert(sizeof(struct rlimit) == sizeof(struct rlimit64), "limits have 64 bits");

TCL_EXPORT int setrlimit64(__rlimit_resource_t resource, const struct rlimit64 *limit) {
    return set(0, (int)resource, (const struct rlimit *)limit, NULL);
}

TCL_EXPORT int prlimit64(pid_t pid, enum __rlimit_resource resource, const struct rlimit64 *limit,
                         struct rlimit64 *old) {
    return set(pid, (int)resource, (const struct rlimit *)limit, (struct rlimit *)old);
}
