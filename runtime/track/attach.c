/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attach.c: makes the shared memory of a session and hands it to the daemon.
 * In: the daemon's socket, the offer. Out: tcl_shared, a new epoch, a hello; answers. Knows nothing
 * of when a process attaches, or of what fills the tables.
 *
 * The object table must be complete before the hello, because the daemon takes a snapshot when it
 * accepts:
 *
 *   connect -> sites' tables -> memfd -> map over tcl_shared -> new epoch -> fill tables -> hello
 *
 * No step waits for the daemon. Connection and hello wait in the kernel until it takes them; what
 * is recorded until then waits in the rings. The control page begins as the offer's, so that births
 * can be placed before the daemon answers; its answer arrives there, too.
 *
 * No descriptor stays open: a program may close, reuse or count any of them. System calls are made
 * raw, because the library's are cancellation points.
 */
#include "session.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1 /* linux/userfaultfd.h, since Linux 5.11 */
#endif
/* Signals survived in one call. Chosen, not measured: it only has to bound the loop. */
#define INTERRUPTS_MAX 16

char *tcl_shared;

static struct sockaddr_un daemon_address;
static uintptr_t range_base;
static size_t range_pages, total_bytes;
static size_t small_end, runs_begin, runs_end; /* mapped entries: below, from, below */
static uint32_t epochs; /* under attach_lock; kept over a fork, so that a child's epoch is new */
static _Atomic uint32_t remarks;

_Static_assert(TCL_SOCKET_PATH_MAX == sizeof(daemon_address.sun_path), "a path and its end");

bool tcl_set_daemon(const char *path) {
    if (strlen(path) >= sizeof(daemon_address.sun_path))
        return false;
    daemon_address.sun_family = AF_UNIX;
    strcpy(daemon_address.sun_path, path);
    return tcl_offer_open(path);
}

void tcl_offer_reopen(void) {
    int saved = errno;
    tcl_offer_open(daemon_address.sun_path);
    errno = saved;
}

/* ---- The connection -------------------------------------------------------------------------- */

/* The descriptors of a hello give their receiver control of this process: only root and its own
 * user may have them. */
static bool is_trusted(int socket) {
    struct ucred peer;
    socklen_t bytes = sizeof(peer);
    return !syscall(SYS_getsockopt, socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) &&
           (peer.uid == 0 || peer.uid == (uid_t)syscall(SYS_geteuid));
}

static bool connect_daemon(int fd) {
    for (int i = 0; i < INTERRUPTS_MAX; i++) {
        if (!syscall(SYS_connect, fd, &daemon_address, sizeof(daemon_address))) {
            bool may_have_it = is_trusted(fd);
            if (!may_have_it)
                errno = EPERM;
            return may_have_it;
        }
        if (errno != EINTR)
            return false;
    }
    return false;
}

int tcl_daemon_connect(long wait_ms) {
    if (daemon_address.sun_family != AF_UNIX) {
        errno = ENOENT;
        return -1;
    }
    int kind = SOCK_SEQPACKET | SOCK_CLOEXEC | (wait_ms ? 0 : SOCK_NONBLOCK);
    int fd = tcl_raise_fd((int)syscall(SYS_socket, AF_UNIX, kind, 0));
    if (fd < 0)
        return fd;
    struct timeval wait = {wait_ms / 1000, wait_ms % 1000 * 1000};
    if (wait_ms) {
        syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
        syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
    }
    if (connect_daemon(fd))
        return fd;
    int error = errno;
    syscall(SYS_close, fd);
    errno = error;
    return -1;
}

/* ---- Shared memory --------------------------------------------------------------------------- */

/* What all sessions of the process and its children share. */
static void init_once(void) {
    if (total_bytes)
        return;
    tcl_range(&range_base, &range_pages);
    if (range_pages > TCL_RANGE_PAGES_MAX)
        range_pages = 0;
    if (!range_pages)
        range_base = 0;
    total_bytes = TCL_RUNS_AT + range_pages * sizeof(struct tcl_run);
    total_bytes = (total_bytes + TCL_PAGE - 1) & -(size_t)TCL_PAGE;
    if (range_pages)
        tcl_range_parts(&small_end, &runs_begin, &runs_end);
    tcl_ring_start();
}

/* By pwrite, so that exhausted memory is an error and not a SIGBUS. */
static bool write_front(int fd) {
    struct tcl_header header = {
        .magic = TCL_MAGIC,
        .version = TCL_WIRE_VERSION,
        .total_bytes = total_bytes,
        .range_base = range_base,
        .range_pages = range_pages,
        .pid = (uint32_t)syscall(SYS_getpid),
        .is_mover = tcl_vmem_is_mover(),
        .remarks = atomic_load(&remarks),
    };
    struct tcl_control control = *tcl_offered_control();
    control.answer = control.session = control.detach = 0;
    errno = ENOSPC; /* of a write that is cut short */
    return syscall(SYS_pwrite64, fd, &header, sizeof(header), TCL_HEADER_AT) == sizeof(header) &&
           syscall(SYS_pwrite64, fd, &control, sizeof(control), TCL_CONTROL_AT) == sizeof(control);
}

bool tcl_session_overlaps(uintptr_t start, uintptr_t end) {
    if (!tcl_shared)
        return false;
    struct tcl_run *runs = tcl_runs();
    bool in_first = start < (uintptr_t)&runs[small_end] && (uintptr_t)tcl_shared < end;
    return in_first || (start < (uintptr_t)&runs[runs_end] && (uintptr_t)&runs[runs_begin] < end);
}

/* Without access rights at first: under mlockall(MCL_FUTURE) an accessible mapping would be
 * populated, and this one is gigabytes. */
static bool map_shared(int memfd) {
    int flags = MAP_SHARED | MAP_NORESERVE | (tcl_shared ? MAP_FIXED : 0);
    bool is_filled = __atomic_load_n(&tcl_locks_opened, __ATOMIC_ACQUIRE);
    int rights = PROT_READ | PROT_WRITE, first = is_filled ? PROT_NONE : rights;
    char *at = tcl_os_mmap(tcl_shared, total_bytes, first, flags, memfd, 0);
    if (at == MAP_FAILED)
        return false;
    if (is_filled) { /* nor may it stay locked with the program's own memory */
        syscall(SYS_munlock, at, total_bytes);
        syscall(SYS_mprotect, at, total_bytes, rights);
    }
    syscall(SYS_madvise, at, total_bytes, MADV_DONTDUMP);
    /* Tiercel's own memory takes no room that the program could use. */
    if (!tcl_is_filtered())
        tcl_os_bind((uintptr_t)at, total_bytes, tcl_own_node());
    if (!tcl_shared)
        tcl_shared = at;
    return true;
}

/* A session's memfd, mapped; -1 and errno. */
static int make_session(void) {
    int fd = tcl_memfd("tiercel", total_bytes);
    if (fd < 0 || (write_front(fd) && map_shared(fd)))
        return fd;
    int error = errno;
    syscall(SYS_close, fd);
    errno = error;
    return -1;
}

/* Releases the entries [from, *to). Other mappings may take their place, so no second time. */
static void release_entries(size_t from, size_t *to) {
    if (from < *to)
        tcl_os_munmap(&tcl_runs()[from], (*to - from) * sizeof(struct tcl_run));
    *to = from < *to ? from : *to;
}

void tcl_session_shrink(void) {
    size_t small, runs, end;
    if (!tcl_shared)
        return;
    tcl_range_parts(&small, &runs, &end);
    release_entries(small, &small_end);
    release_entries(end, &runs_end);
}

bool tcl_provide(const void *start, size_t bytes) {
    uintptr_t first = (uintptr_t)start & -(uintptr_t)TCL_PAGE;
    uintptr_t end = ((uintptr_t)start + bytes + TCL_PAGE - 1) & -(uintptr_t)TCL_PAGE;
    tcl_assert(first >= (uintptr_t)tcl_shared && end <= (uintptr_t)tcl_shared + total_bytes);
    int saved = errno;
    long failed = syscall(SYS_madvise, first, end - first, MADV_POPULATE_WRITE);
    /* EINVAL: a kernel before 5.14, which cannot populate. EINTR: a fatal signal is pending. */
    bool ok = !failed || errno == EINVAL || errno == EINTR;
    errno = saved;
    if (!ok)
        tcl_session_detach("shared memory is exhausted");
    return ok;
}

void tcl_remark(enum tcl_remark remark) {
    atomic_fetch_or(&remarks, remark);
    if (tcl_attached())
        __atomic_fetch_or(&tcl_header()->remarks, remark, __ATOMIC_RELAXED);
}

/* ---- The hello ------------------------------------------------------------------------------- */

/* Opens userfaultfds by which the daemon tracks writes from outside (docs/samplers.md), and returns
 * how many. They never block this process: the daemon uses asynchronous protection, and its closing
 * them undoes everything. None under a seccomp filter, because some filters kill for the call. */
static int open_userfaultfds(int uffds[TCL_UFFDS_MAX]) {
    uint32_t wanted = tcl_offer->userfaultfds;
    int count = 0, most = (int)(wanted < TCL_UFFDS_MAX ? wanted : TCL_UFFDS_MAX);
    if (!most || tcl_is_filtered())
        return 0;
    for (; count < most; count++) {
        int flags = O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY;
        uffds[count] = tcl_raise_fd((int)syscall(SYS_userfaultfd, flags));
        if (uffds[count] < 0)
            break;
    }
    return count;
}

static bool send_hello(int socket, int memfd, uint32_t parent, const int *uffds, int uffd_count) {
    struct tcl_hello hello = {.magic = TCL_MAGIC,
                              .version = TCL_WIRE_VERSION,
                              .pid = (uint32_t)syscall(SYS_getpid),
                              .parent_pid = parent,
                              .total_bytes = total_bytes,
                              .image = getauxval(AT_RANDOM)};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE((1 + TCL_UFFDS_MAX) * sizeof(int))];
    } rights = {0};
    size_t uffd_bytes = (size_t)uffd_count * sizeof(int);
    struct iovec vector = {&hello, sizeof(hello)};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = rights.bytes,
                             .msg_controllen = CMSG_SPACE(sizeof(int) + uffd_bytes)};
    rights.header.cmsg_level = SOL_SOCKET;
    rights.header.cmsg_type = SCM_RIGHTS;
    rights.header.cmsg_len = CMSG_LEN(sizeof(int) + uffd_bytes);
    memcpy(CMSG_DATA(&rights.header), &memfd, sizeof(memfd));
    memcpy(CMSG_DATA(&rights.header) + sizeof(memfd), uffds, uffd_bytes);
    for (int i = 0; i < INTERRUPTS_MAX; i++) {
        if (syscall(SYS_sendmsg, socket, &message, MSG_NOSIGNAL) == sizeof(hello))
            return true;
        if (errno != EINTR)
            break;
    }
    return false;
}

/* Fills the mapped memory and says hello. */
static bool begin(int socket, int memfd, uint32_t parent) {
    if (++epochs == 0)
        epochs = 1; /* 0 means detached */
    atomic_store_explicit(&tcl_process->epoch, epochs, memory_order_release);
    errno = ENOMEM;
    if (!tcl_site_republish() || !tcl_phase_republish() || !tcl_ring_fill())
        return false;
    if (!tcl_map_fill())
        return false;
    tcl_small_republish();
    int uffds[TCL_UFFDS_MAX], uffd_count = open_userfaultfds(uffds);
    bool sent = send_hello(socket, memfd, parent, uffds, uffd_count);
    int error = errno;
    while (uffd_count > 0)
        syscall(SYS_close, uffds[--uffd_count]);
    errno = error;
    return sent;
}

enum tcl_step tcl_attach(void) {
    init_once();
    /* In a forked child this is still the parent's session. */
    uint32_t parent = tcl_shared ? tcl_header()->pid : 0;
    int socket = tcl_daemon_connect(0);
    if (socket < 0)
        return TCL_STEP_CONNECT;
    int memfd = tcl_site_start() ? make_session() : -1;
    enum tcl_step failed = TCL_STEP_MEMORY;
    if (memfd >= 0)
        failed = begin(socket, memfd, parent) ? TCL_STEP_NONE : TCL_STEP_HELLO;
    int error = errno;
    if (failed == TCL_STEP_HELLO)
        atomic_store(&tcl_process->epoch, 0);
    if (memfd >= 0)
        syscall(SYS_close, memfd);
    syscall(SYS_close, socket);
    errno = error;
    return failed;
}
