/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * session.c: makes the shared memory, attaches to the daemon and detaches from it.
 * In: TIERCEL_SOCKET; forks; a daemon that may start late, stop, stall or send anything. Out:
 * tcl_shared, tcl_life. Knows nothing of records, sites or heaps, except that a new session has to
 * be filled.
 *
 * The object table must be complete before the hello, because the daemon takes a snapshot when it
 * accepts:
 *
 *   connect -> memfd -> map over tcl_shared -> new epoch -> fill tables -> hello -> welcome
 *
 * No descriptor stays open: a program may close, reuse or count any of them. System calls are made
 * raw, because the library's are cancellation points. After any failure the program runs as it
 * would without us, with one exception: a seccomp filter that was there when the program began and
 * *kills* for memfd_create or socket. One that refuses them (EPERM, ENOSYS) is an ordinary failure;
 * under one that the program has installed, children do not attach.
 */
#include "session.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* linux/mman.h, since Linux 5.14 */
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1 /* linux/userfaultfd.h, since Linux 5.11 */
#endif
/* How long an attach waits for each message. Chosen, not measured: a start-up delay that a user
 * hardly notices, with the daemon's loop free many times in it. */
#define WAIT_MS 250
/* Time between failed attaches: 1 s, doubled up to 1 s << 6 = 64 s. Chosen, not measured: a daemon
 * that restarts finds its processes within about a minute. */
#define RETRY_MS 1000
#define RETRY_DOUBLINGS 6
/* Signals survived while waiting. Chosen, not measured: it only has to bound the loop. */
#define INTERRUPTS_MAX 16
/* Attempts at a lock word, and how many of them precede the first yield. Chosen, not measured: the
 * sections are a few microseconds long, but for populating memory and walking a stack. */
#define LOCK_SPINS 64
#define LOCK_YIELDS 2000

static struct tcl_life no_life;
struct tcl_life *tcl_life = &no_life;
_Atomic uint32_t tcl_mode;
char *tcl_shared;

static struct sockaddr_un daemon_address;
static uintptr_t range_base;
static size_t range_pages, total_bytes;
static uint32_t epochs; /* under attach_lock; kept over a fork, so that a child's epoch is new */
static uint32_t session_number; /* of the last welcome; a child inherits its parent's */

static bool fork_holds_maps, fork_holds_sites;

static const char *attach(void);
static bool prepare(void);
static void back_heap(void);
static void warn_errno(const char *what);

void tcl_session_start(void) {
    int saved = errno;
    const char *path = secure_getenv(TCL_SOCKET_ENV);
    atomic_store(&tcl_mode, TCL_MODE_ALONE);
    if (path && *path && !getauxval(AT_SECURE)) {
        if (strlen(path) >= sizeof(daemon_address.sun_path)) {
            errno = ENAMETOOLONG;
            warn_errno(TCL_SOCKET_ENV);
        } else {
            daemon_address.sun_family = AF_UNIX;
            strcpy(daemon_address.sun_path, path);
            const char *failure = prepare() ? attach() : "the session's memory";
            if (!failure)
                back_heap();
            if (failure)
                warn_errno(failure);
            else if (!tcl_is_our_malloc())
                tcl_warn("this program brings its own malloc; only what it maps is tracked");
            if (failure && errno == EAGAIN) /* the daemon is busy: later births try again */
                atomic_store(&tcl_mode, TCL_MODE_TRACKED);
        }
    }
    tcl_map_start();
    errno = saved;
}

/* Applies control.backing, once, as the program starts. */
static void back_heap(void) {
    uint32_t backing = __atomic_load_n(&tcl_control()->backing, __ATOMIC_ACQUIRE);
    if (backing == TCL_BACKING_KERNEL || backing > TCL_BACKING_POOLS || !tcl_is_our_malloc())
        return;
    if (tcl_frugal)
        tcl_warn("address space or memory is limited: the heap stays ordinary memory");
    else
        tcl_vmem_back_heap(backing == TCL_BACKING_POOLS);
}

static void attach_again(void) {
    struct tcl_life *life = tcl_life;
    uint32_t free = 0;
    int saved = errno;
    if (tcl_has_new_filter()) { /* it may kill for what attaching needs */
        atomic_store(&tcl_mode, TCL_MODE_ALONE);
        errno = saved;
        return;
    }
    if (!atomic_compare_exchange_strong(&life->attach_lock, &free, 1))
        return; /* another thread is attaching */
    uint64_t now = tcl_now_ms();
    if (now >= life->next_try_ms) {
        life->next_try_ms = now + ((uint64_t)RETRY_MS << life->tries);
        if (!attach())
            life->tries = 0;
        else if (life->tries < RETRY_DOUBLINGS)
            life->tries++;
    }
    tcl_unlock(&life->attach_lock);
    errno = saved;
}

void tcl_session_poll(void) {
    if (tcl_unlikely(!tcl_attached()) && tcl_tracking())
        attach_again();
    if (tcl_unlikely(atomic_load_explicit(&tcl_vmem_start_pending, memory_order_relaxed)))
        tcl_vmem_start_if_large();
}

void tcl_session_reattach(void) {
    attach_again();
}

void tcl_session_detach(const char *reason) {
    atomic_store(&tcl_mode, TCL_MODE_ALONE);
    if (!atomic_exchange(&tcl_life->epoch, 0))
        return;
    tcl_assert(tcl_shared); /* an epoch implies a mapping */
    struct tcl_header *header = tcl_header();
    strncpy(header->reason, reason, sizeof(header->reason) - 1);
    __atomic_store_n(&header->detached, 1, __ATOMIC_RELEASE);
}

bool tcl_tracking(void) {
    return atomic_load_explicit(&tcl_mode, memory_order_relaxed) == TCL_MODE_TRACKED;
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

bool tcl_lock(_Atomic uint32_t *word) {
    /* Two threads may have the same number; then one gives up too early, which is allowed. */
    uint32_t self = (uint32_t)((uintptr_t)__builtin_thread_pointer() >> 4) | 1;
    for (int i = 0; i < LOCK_YIELDS; i++) {
        uint32_t owner = 0;
        if (atomic_compare_exchange_strong_explicit(word, &owner, self, memory_order_acquire,
                                                    memory_order_relaxed))
            return true;
        if (owner == self)
            return false; /* a signal handler, which interrupted the section */
        if (i >= LOCK_SPINS)
            syscall(SYS_sched_yield);
    }
    return false;
}

uint64_t tcl_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* False in a program that exports malloc itself, or whose other preload comes before us. */
bool tcl_is_our_malloc(void) {
    static _Atomic int8_t known; /* 1: yes, -1: no */
    Dl_info theirs, ours;
    if (tcl_likely(atomic_load_explicit(&known, memory_order_relaxed)))
        return atomic_load_explicit(&known, memory_order_relaxed) > 0;
    void *found = dlsym(RTLD_DEFAULT, "malloc");
    bool is_ours = !found || !dladdr(found, &theirs) ||
                   !dladdr((void *)&tcl_session_start, &ours) || theirs.dli_fbase == ours.dli_fbase;
    atomic_store_explicit(&known, is_ours ? 1 : -1, memory_order_relaxed);
    return is_ours;
}

/* To stderr, in one write, without stdio or malloc. The runtime has no other output. */
static void write_line(const char *const *parts, size_t count) {
    char line[256];
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = strnlen(parts[i], sizeof(line) - used);
        memcpy(line + used, parts[i], bytes);
        used += bytes;
    }
    syscall(SYS_write, STDERR_FILENO, line, used);
}

void tcl_warn(const char *what) {
    write_line((const char *[]){"tiercel: ", what, "\n"}, 3);
}

/* What failed, and errno. */
static void warn_errno(const char *what) {
    int saved = errno;
    const char *why = strerrordesc_np(saved);
    write_line((const char *[]){"tiercel: ", what, ": ", why ? why : "unknown error",
                                "; this program runs without tiering\n"},
               5);
    errno = saved;
}

/* ---- Attaching ------------------------------------------------------------------------------- */

/* The child needs consistent copies of the tables. Its locks are wiped, so it needs no handler. */
static void before_fork(void) {
    fork_holds_maps = tcl_lock(&tcl_life->map_lock);
    fork_holds_sites = tcl_lock(&tcl_life->site_lock);
}

static void after_fork_parent(void) {
    if (fork_holds_sites)
        tcl_unlock(&tcl_life->site_lock);
    if (fork_holds_maps)
        tcl_unlock(&tcl_life->map_lock);
}

/* Once a process: what all sessions of the process and its children share. */
static bool prepare(void) {
    tcl_range(&range_base, &range_pages);
    if (range_pages > TCL_RANGE_PAGES_MAX)
        range_pages = 0;
    if (!range_pages)
        range_base = 0;
    total_bytes = TCL_RUNS_AT + range_pages * sizeof(struct tcl_run);
    total_bytes = (total_bytes + TCL_PAGE - 1) & -(size_t)TCL_PAGE;
    struct tcl_life *life =
        tcl_os_mmap(NULL, TCL_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (life == MAP_FAILED)
        return false;
    if (syscall(SYS_madvise, life, TCL_PAGE, MADV_WIPEONFORK))
        return false; /* before Linux 4.14 */
    tcl_life = life;
    tcl_ring_start();
    return !pthread_atfork(before_fork, after_fork_parent, NULL);
}

/* The descriptors of a hello give their receiver control of this process: only root and its own
 * user may have them. */
static bool is_trusted(int socket) {
    struct ucred peer;
    socklen_t bytes = sizeof(peer);
    return !syscall(SYS_getsockopt, socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) &&
           (peer.uid == 0 || peer.uid == (uid_t)syscall(SYS_geteuid));
}

int tcl_daemon_connect(void) {
    if (daemon_address.sun_family != AF_UNIX) {
        errno = ENOENT;
        return -1;
    }
    int fd = tcl_raise_fd((int)syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (fd < 0)
        return fd;
    struct timeval wait = {0, WAIT_MS * 1000};
    syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
    for (int i = 0; i < INTERRUPTS_MAX; i++) {
        if (!syscall(SYS_connect, fd, &daemon_address, sizeof(daemon_address))) {
            if (is_trusted(fd))
                return fd;
            errno = EPERM;
            break;
        }
        if (errno != EINTR)
            break;
    }
    int error = errno;
    syscall(SYS_close, fd);
    errno = error;
    return -1;
}

/* A memfd with a header; -1 and errno when the kernel refuses. */
static int make_memfd(void) {
    int fd = tcl_memfd("tiercel", total_bytes);
    if (fd < 0)
        return fd;
    struct tcl_header header = {
        .magic = TCL_MAGIC,
        .version = TCL_WIRE_VERSION,
        .total_bytes = total_bytes,
        .range_base = range_base,
        .range_pages = range_pages,
        .pid = (uint32_t)syscall(SYS_getpid),
        .is_mover = tcl_vmem_is_mover(),
    };
    struct tcl_control control = {0};
    /* By pwrite, so that exhausted memory is an error and not a SIGBUS. */
    if (syscall(SYS_pwrite64, fd, &header, sizeof(header), TCL_HEADER_AT) == sizeof(header) &&
        syscall(SYS_pwrite64, fd, &control, sizeof(control), TCL_CONTROL_AT) == sizeof(control))
        return fd;
    int error = errno;
    syscall(SYS_close, fd);
    errno = error;
    return -1;
}

bool tcl_session_overlaps(uintptr_t start, uintptr_t end) {
    uintptr_t at = (uintptr_t)tcl_shared;
    return at && start < at + total_bytes && at < end;
}

/* Without access rights at first: under mlockall(MCL_FUTURE) a mapping with rights would be filled,
 * and it has gigabytes. */
static bool map_shared(int memfd) {
    int flags = MAP_SHARED | MAP_NORESERVE | (tcl_shared ? MAP_FIXED : 0);
    bool is_filled = __atomic_load_n(&tcl_locks_opened, __ATOMIC_ACQUIRE);
    int rights = PROT_READ | PROT_WRITE, first = is_filled ? PROT_NONE : rights;
    char *at = tcl_os_mmap(tcl_shared, total_bytes, first, flags, memfd, 0);
    if (at == MAP_FAILED)
        return false;
    if (is_filled)
        syscall(SYS_mprotect, at, total_bytes, rights);
    syscall(SYS_madvise, at, total_bytes, MADV_DONTDUMP);
    if (!tcl_shared)
        tcl_shared = at;
    return true;
}

/* Opens userfaultfds by which the daemon tracks writes from outside (docs/samplers.md), and returns
 * how many. They never block this process: the daemon uses asynchronous protection, and its closing
 * them undoes everything. None under a seccomp filter, because some filters kill for the call. */
static int open_userfaultfds(int uffds[TCL_UFFDS_MAX]) {
    int count = 0;
    if (tcl_is_filtered())
        return 0;
    for (; count < (int)TCL_UFFDS_MAX; count++) {
        int flags = O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY;
        uffds[count] = tcl_raise_fd((int)syscall(SYS_userfaultfd, flags));
        if (uffds[count] < 0)
            break;
    }
    return count;
}

static bool send_hello(int socket, int memfd, const int *uffds, int uffd_count) {
    struct tcl_hello hello = {.magic = TCL_MAGIC,
                              .version = TCL_WIRE_VERSION,
                              .pid = (uint32_t)syscall(SYS_getpid),
                              .parent_session = session_number,
                              .total_bytes = total_bytes};
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

static const char *await_welcome(int socket) {
    struct tcl_welcome welcome;
    long got = -1;
    for (int i = 0; got < 0 && i < INTERRUPTS_MAX; i++) {
        got = syscall(SYS_recvfrom, socket, &welcome, sizeof(welcome), 0, NULL, NULL);
        if (got < 0 && errno != EINTR)
            return "the daemon does not answer";
    }
    errno = EPROTO;
    if (got != sizeof(welcome) || welcome.magic != TCL_MAGIC)
        return "the daemon's answer is no greeting";
    if (welcome.version != TCL_WIRE_VERSION || welcome.status == TCL_REFUSED_VERSION)
        return "the daemon is of another version";
    errno = EACCES;
    switch (welcome.status) {
    case TCL_OK:
        session_number = welcome.session;
        return NULL;
    case TCL_REFUSED_USER:
        return "the daemon serves other users";
    case TCL_REFUSED_FULL:
        errno = EUSERS;
        return "the daemon has no room for another process";
    default:
        return "the daemon refused";
    }
}

/* Fills the mapped memory and exchanges the greeting. */
static const char *begin(int socket, int memfd) {
    tcl_ring_reset();
    if (++epochs == 0)
        epochs = 1; /* 0 means detached */
    atomic_store_explicit(&tcl_life->epoch, epochs, memory_order_release);
    atomic_store(&tcl_mode, TCL_MODE_TRACKED);
    errno = ENOMEM;
    if (!tcl_site_republish() || !tcl_phase_republish() || !tcl_ring_fill() || !tcl_map_fill())
        return "shared memory for the session";
    int uffds[TCL_UFFDS_MAX], uffd_count = open_userfaultfds(uffds);
    bool sent = send_hello(socket, memfd, uffds, uffd_count);
    while (uffd_count > 0)
        syscall(SYS_close, uffds[--uffd_count]);
    if (!sent)
        return "the greeting to the daemon";
    return await_welcome(socket);
}

/* NULL, or what failed, with errno. EAGAIN: worth another try. */
static const char *attach(void) {
    int socket = tcl_daemon_connect();
    if (socket < 0)
        return daemon_address.sun_path;
    int memfd = make_memfd();
    const char *failure = "the memory shared with the daemon";
    bool mapped = memfd >= 0 && map_shared(memfd);
    if (mapped)
        failure = begin(socket, memfd);
    int error = errno;
    if (failure && mapped && error == EAGAIN)
        atomic_store(&tcl_life->epoch, 0);
    else if (failure && mapped)
        tcl_session_detach(failure);
    if (memfd >= 0)
        syscall(SYS_close, memfd);
    syscall(SYS_close, socket);
    errno = error;
    return failure;
}
