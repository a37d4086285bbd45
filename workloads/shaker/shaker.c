/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * shaker.c: runs a command in a heap that moves all the time.
 * In: TIERCEL_LIB, the runtime; SHAKER_REPORT, a file; a command. Out: the command, in this
 * process, with its own exit status; a line in the file: `shaken PROCESSES REQUESTS BYTES`. Knows
 * nothing of heat, objects or nodes.
 *
 * A daemon of policies moves what it believes to be worth it, where the machine has several nodes.
 * This one asks every process that can move its own heap to move all of it to a node that no
 * machine has, again and again: each move copies each OS page, on any machine.
 */
#define _GNU_SOURCE
#include "../../include/tiercel_wire.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SESSIONS_MAX 4096 /* chosen: as many as a daemon hosts by default */
#define ABSENT_NODE 900   /* no machine has this node */
#define BACKLOG 64        /* chosen */
#define TURN_MS 1         /* between two looks at processes. Chosen */
#define LOOK_MS 100       /* between two looks whether processes live. Chosen */

struct session {
    pid_t pid; /* 0: an empty slot */
    int pidfd;
    char *base;
    size_t bytes;
    uint32_t asked;
};

static struct session sessions[SESSIONS_MAX];
static uint64_t processes, requests, moved_bytes;

static void fail(const char *what) {
    fprintf(stderr, "shaker: %s: %s\n", what, strerror(errno));
    exit(125);
}

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static struct tcl_header *header_of(const struct session *session) {
    return (void *)(session->base + TCL_HEADER_AT);
}

static struct tcl_control *control_of(const struct session *session) {
    return (void *)(session->base + TCL_CONTROL_AT);
}

/* ---- Sessions -------------------------------------------------------------------------------- */

static void end_session(struct session *session) {
    munmap(session->base, session->bytes);
    close(session->pidfd);
    *session = (struct session){0};
}

static struct session *free_slot(pid_t pid) {
    struct session *free = NULL;
    for (struct session *one = sessions; one < sessions + SESSIONS_MAX; one++) {
        if (one->pid == pid)
            end_session(one); /* it attaches again, after an exec */
        if (!one->pid)
            free = free ? free : one;
    }
    return free;
}

/* Maps the session of a process; false: it is none. */
static bool open_session(struct session *session, pid_t pid, int memfd, size_t bytes) {
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memfd, 0);
    if (pidfd < 0 || base == MAP_FAILED) {
        if (pidfd >= 0)
            close(pidfd);
        if (base != MAP_FAILED)
            munmap(base, bytes);
        return false;
    }
    *session = (struct session){.pid = pid, .pidfd = pidfd, .base = base, .bytes = bytes};
    struct tcl_control *control = control_of(session);
    control->magic = TCL_MAGIC;
    control->version = TCL_WIRE_VERSION;
    control->backing = TCL_BACKING_VMEM;
    processes++;
    return true;
}

/* The memfd of a hello; -1: none. */
static int receive_hello(int socket, struct tcl_hello *hello) {
    char rights[CMSG_SPACE((1 + TCL_UFFDS_MAX) * sizeof(int))];
    struct iovec vector = {hello, sizeof(*hello)};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = rights,
                             .msg_controllen = sizeof(rights)};
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *header = got == sizeof(*hello) ? CMSG_FIRSTHDR(&message) : NULL;
    if (!header || header->cmsg_type != SCM_RIGHTS)
        return -1;
    int fds[1 + TCL_UFFDS_MAX];
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(header), count * sizeof(int));
    for (size_t i = 1; i < count; i++)
        close(fds[i]);
    return fds[0];
}

static void greet(int listener) {
    struct tcl_hello hello = {0};
    struct ucred peer = {0};
    socklen_t length = sizeof(peer);
    int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0)
        return;
    int memfd = receive_hello(socket, &hello);
    getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length);
    struct session *slot = memfd >= 0 ? free_slot(peer.pid) : NULL;
    bool is_open = slot && open_session(slot, peer.pid, memfd, hello.total_bytes);
    struct tcl_welcome welcome = {TCL_MAGIC, TCL_WIRE_VERSION,
                                  is_open ? TCL_OK : TCL_REFUSED_FULL, (uint32_t)processes};
    send(socket, &welcome, sizeof(welcome), MSG_NOSIGNAL);
    if (memfd >= 0)
        close(memfd);
    close(socket);
}

/* ---- Turns ----------------------------------------------------------------------------------- */

/* Takes records unread: a ring that stays full makes the runtime detach. */
static void drain(const struct session *session) {
    uint32_t rings = __atomic_load_n(&header_of(session)->ring_high_water, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < rings && i < TCL_RINGS_MAX; i++) {
        struct tcl_ring *ring =
            (void *)(session->base + TCL_RINGS_AT + i * sizeof(struct tcl_ring));
        uint64_t head = __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE);
        __atomic_store_n(&ring->tail, head, __ATOMIC_RELEASE);
    }
}

/* One request at a time: all of the heap. */
static void request_moves(struct session *session) {
    struct tcl_header *header = header_of(session);
    struct tcl_control *control = control_of(session);
    if (!header->is_mover ||
        __atomic_load_n(&header->moves_done, __ATOMIC_ACQUIRE) != session->asked)
        return;
    if (session->asked)
        moved_bytes += header->moved[0].bytes;
    control->moves[0] = (struct tcl_move){.addr = header->range_base,
                                          .bytes = header->range_pages * TCL_PAGE,
                                          .node = ABSENT_NODE};
    control->move_count = 1;
    __atomic_store_n(&control->moves_asked, ++session->asked, __ATOMIC_RELEASE);
    syscall(SYS_futex, &control->moves_asked, FUTEX_WAKE, 1, NULL, NULL, 0);
    requests++;
}

/* Ends the sessions of processes that are gone; true: some process lives. */
static bool look(void) {
    bool is_any = false;
    for (struct session *one = sessions; one < sessions + SESSIONS_MAX; one++) {
        struct pollfd end = {.fd = one->pidfd, .events = POLLIN};
        if (one->pid && poll(&end, 1, 0) == 1)
            end_session(one);
        is_any |= one->pid != 0;
    }
    return is_any;
}

static void report(const char *path) {
    char line[128];
    int fd = path ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    int bytes = snprintf(line, sizeof(line), "shaken %lu %lu %lu\n", processes, requests,
                         moved_bytes);
    if (fd >= 0 && write(fd, line, (size_t)bytes) != bytes)
        _exit(1);
}

/* Until the command and all hosted processes are gone. */
static void serve(int listener, int command) {
    uint64_t looked_ms = 0;
    for (bool is_any = true; is_any;) {
        struct pollfd next = {.fd = listener, .events = POLLIN};
        if (poll(&next, 1, TURN_MS) == 1)
            greet(listener);
        for (struct session *one = sessions; one < sessions + SESSIONS_MAX; one++) {
            if (!one->pid)
                continue;
            drain(one);
            request_moves(one);
        }
        if (now_ms() - looked_ms < LOOK_MS)
            continue;
        looked_ms = now_ms();
        struct pollfd end = {.fd = command, .events = POLLIN};
        is_any = look() || poll(&end, 1, 0) == 0;
    }
}

/* The daemon is no child of the command, which may wait for any child, and keeps none of its files
 * open. Its parent, a child that ends at once, is waited for here. */
static void start_daemon(int listener, const char *folder, const char *path) {
    int command = (int)syscall(SYS_pidfd_open, getpid(), 0);
    pid_t child = fork();
    if (child < 0 || command < 0)
        fail("starting the daemon");
    if (child > 0) {
        waitpid(child, NULL, 0);
        close(command);
        return;
    }
    if (fork())
        _exit(0);
    setsid();
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    signal(SIGPIPE, SIG_IGN);
    serve(listener, command);
    report(getenv("SHAKER_REPORT"));
    unlink(path);
    rmdir(folder);
    _exit(0);
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/tiercel-shaker-XXXXXX";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *library = getenv("TIERCEL_LIB");
    if (argc < 2 || !library) {
        fputs("usage: TIERCEL_LIB=libtiercel.so shaker COMMAND...\n", stderr);
        return 2;
    }
    if (!mkdtemp(folder))
        fail("a folder");
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", folder);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (void *)&address, sizeof(address)) ||
        listen(listener, BACKLOG))
        fail(address.sun_path);
    start_daemon(listener, folder, address.sun_path);
    close(listener);
    setenv(TCL_SOCKET_ENV, address.sun_path, 1);
    setenv("LD_PRELOAD", library, 1);
    execvp(argv[1], argv + 1);
    fail(argv[1]);
}
