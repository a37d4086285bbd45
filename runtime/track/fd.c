/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * fd.c: descriptors that stay out of the program's way.
 * In: names and sizes. Out: sealed memfds, and descriptors with high numbers. Knows nothing of
 * what is shared by them.
 */
#include "../base.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u /* linux/memfd.h, since Linux 6.3 */
#endif
/* The lowest number of our descriptors. Chosen, not measured: far above the few that programs
 * number themselves (dup2, shells' redirections), and below the usual soft limit of 1024. */
#define HIGH_FD 200

int tcl_raise_fd(int fd) {
    if (fd < 0 || fd >= HIGH_FD)
        return fd;
    int high = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH_FD);
    if (high < 0)
        return fd; /* a low limit */
    syscall(SYS_close, fd);
    return high;
}

int tcl_memfd(const char *name, size_t bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur < bytes) {
        errno = EFBIG; /* ftruncate would raise SIGXFSZ */
        return -1;
    }
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = (int)syscall(SYS_memfd_create, name, flags | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = (int)syscall(SYS_memfd_create, name, flags);
    fd = tcl_raise_fd(fd);
    if (fd < 0)
        return -1;
    /* Not F_SEAL_SEAL: the daemon seals a session further, once it has mapped it. */
    if (!syscall(SYS_ftruncate, fd, bytes) &&
        !syscall(SYS_fcntl, fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
        return fd;
    int error = errno;
    syscall(SYS_close, fd);
    errno = error;
    return -1;
}
