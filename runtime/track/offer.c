/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * offer.c: what the daemon offers to processes that have not attached.
 * In: the path of its socket. Out: the mapped offer; this process's counts in it. Knows nothing of
 * sessions.
 *
 * To open and map this file is all that being hosted costs a process that ends early. It is
 * believed as far as its owner is; values are copied, then clamped.
 */
#include "session.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct tcl_offer *tcl_offer;

static bool can_count;

/* Root's or this user's, and whole: what is mapped beyond the end of a file raises SIGBUS. */
static bool is_offer(int fd) {
    struct stat stat;
    return !syscall(SYS_fstat, fd, &stat) && S_ISREG(stat.st_mode) &&
           (stat.st_uid == 0 || stat.st_uid == (uid_t)syscall(SYS_geteuid)) &&
           (uint64_t)stat.st_size >= TCL_OFFER_BYTES;
}

/* Over the offer that is mapped already, if there is one: other threads may read it. */
static bool map_offer(int fd, int rights) {
    int flags = MAP_SHARED | (tcl_offer ? MAP_FIXED : 0);
    void *at = tcl_os_mmap(tcl_offer, TCL_OFFER_BYTES, rights, flags, fd, 0);
    if (at == MAP_FAILED)
        return false;
    tcl_offer = at;
    return tcl_offer->magic == TCL_MAGIC && tcl_offer->version == TCL_WIRE_VERSION;
}

bool tcl_offer_open(const char *socket_path) {
    char path[TCL_SOCKET_PATH_MAX + sizeof(TCL_OFFER_SUFFIX)];
    size_t bytes = strlen(socket_path);
    memcpy(path, socket_path, bytes);
    memcpy(path + bytes, TCL_OFFER_SUFFIX, sizeof(TCL_OFFER_SUFFIX));
    int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, rights = PROT_READ | PROT_WRITE;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | flags, 0);
    if (fd < 0 && errno == EACCES) {
        fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | flags, 0);
        rights = PROT_READ;
    }
    if (fd < 0)
        return false;
    bool is_open = is_offer(fd) && map_offer(fd, rights);
    syscall(SYS_close, fd);
    can_count = is_open && rights & PROT_WRITE && tcl_offer->is_counted;
    return is_open;
}

void tcl_offer_count(uint64_t *counter) {
    if (can_count)
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

void tcl_offer_failed(enum tcl_step step, int error) {
    if (!can_count)
        return;
    if (__atomic_fetch_add(&tcl_offer->failed, 1, __ATOMIC_RELAXED) == 0) {
        tcl_offer->failed_errno = (uint32_t)error;
        __atomic_store_n(&tcl_offer->failed_step, step, __ATOMIC_RELEASE);
    }
}

bool tcl_offer_overlaps(uintptr_t start, uintptr_t end) {
    uintptr_t at = (uintptr_t)tcl_offer;
    return at && start < at + TCL_OFFER_BYTES && at < end;
}
