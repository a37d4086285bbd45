/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * seccomp.c: whether a seccomp filter may judge this process's system calls, and whether it may
 * read the time.
 * In: the process's status when it is first asked for, and the program's prctl. Out: a yes or no.
 * Knows nothing of what the others do then.
 *
 * Some filters kill for a call that the program itself would never make. So the runtime makes no
 * unusual call under a filter, and does not ask by a call that a filter may kill for: prctl is one.
 * A filter that was there when the program began is in /proc/self/status. One that the program
 * installs is preceded by prctl: an unprivileged process must set no_new_privs first, and
 * libraries always do. What a privileged program installs by a raw system call is not seen.
 */
#include "../vmem/vmem.h"
#include "clock.h"
#include <fcntl.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STATUS_BYTES 2048u /* the line is within the first 1.4 KiB, names included */

enum { UNKNOWN = 0, NO, YES };
static _Atomic int state;

static _Atomic bool is_new; /* since the program began */

_Atomic bool tcl_clock_is_forbidden;

/* Without /proc: YES. */
static int read_state(void) {
    char status[STATUS_BYTES];
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC, 0);
    long got = fd < 0 ? -1 : syscall(SYS_read, fd, status, sizeof(status) - 1);
    if (fd >= 0)
        syscall(SYS_close, fd);
    status[got > 0 ? got : 0] = 0;
    const char *line = strstr(status, "\nSeccomp:\t");
    return line && line[sizeof("\nSeccomp:\t") - 1] == '0' ? NO : YES;
}

bool tcl_is_filtered(void) {
    if (tcl_unlikely(atomic_load(&state) == UNKNOWN)) {
        int unknown = UNKNOWN, found = read_state();
        atomic_compare_exchange_strong(&state, &unknown, found);
    }
    return atomic_load(&state) == YES;
}

bool tcl_has_new_filter(void) {
    return atomic_load(&is_new);
}

TCL_EXPORT int prctl(int option, ...) {
    unsigned long argument[4];
    va_list rest;
    va_start(rest, option);
    for (int i = 0; i < 4; i++)
        argument[i] = va_arg(rest, unsigned long);
    va_end(rest);
    if (tcl_unlikely((option == PR_SET_TSC && argument[0] == PR_TSC_SIGSEGV) ||
                     (option == PR_SET_SECCOMP && argument[0] == SECCOMP_MODE_STRICT)))
        atomic_store(&tcl_clock_is_forbidden, true);
    if (tcl_unlikely(option == PR_SET_SECCOMP || option == PR_SET_NO_NEW_PRIVS)) {
        atomic_store(&is_new, true);
        atomic_store(&state, YES);
        tcl_vmem_await_move();
    }
    return (int)syscall(SYS_prctl, option, argument[0], argument[1], argument[2], argument[3]);
}
