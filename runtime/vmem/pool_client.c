/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * pool_client.c: requests segments from the daemon's pools.
 * In: a node and a size. Out: a memfd, or an errno. Knows nothing of what a segment is for.
 *
 * Each request has a connection of its own; requests are rare, because segments are large and their
 * vpages are handed out locally. Every answer is checked.
 */
#include "../track/session.h"
#include "region.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The daemon populates memory that it does not have ready: 2 s, and 4 s a GiB. Chosen, not
 * measured: several times what populating takes. */
#define WAIT_MS 2000u
#define WAIT_MS_GIB 4000u
/* The longest wait while another thread waits for the lock, as one that forks does, and for the
 * answer to a return, which is of no use but to keep returns and later grants in order. Chosen, not
 * measured: a segment that is ready is granted in less than a millisecond. */
#define SHORT_WAIT_MS 10u
#define LOOK_MS 2 /* between two looks at the lock; a fifth of the above */
/* A daemon that did not answer gets no question for so long. As long as the daemon leaves alone a
 * process that does not answer. */
#define SILENT_MS 10000u
/* Signals survived while waiting. Chosen, not measured: it only has to bound the loop. */
#define INTERRUPTS_MAX 16

static uint64_t silent_until_ms, late_until_ms; /* for grants; for returns. Under the lock */

static bool send_request(int socket, const struct tcl_pool_ask *exchange) {
    for (int i = 0; i < INTERRUPTS_MAX; i++) {
        if (syscall(SYS_sendto, socket, exchange, sizeof(*exchange), MSG_NOSIGNAL, NULL, 0) ==
            sizeof(*exchange))
            return true;
        if (errno != EINTR)
            break;
    }
    return false;
}

/* Waits for an answer. A daemon that is slow while another thread needs the lock is not silent. */
static bool await_answer(int socket, const struct tcl_pool_ask *question) {
    bool is_grant = question->verb == TCL_POOL_GRANT;
    uint64_t begin_ms = tcl_now_ms(), waited_ms = 0;
    uint64_t limit_ms = is_grant ? WAIT_MS + WAIT_MS_GIB * (question->bytes >> 30) : SHORT_WAIT_MS;
    while (waited_ms < limit_ms) {
        if (waited_ms >= SHORT_WAIT_MS && vmem_is_awaited())
            return false;
        struct pollfd answer = {.fd = socket, .events = POLLIN};
        long ready = syscall(SYS_poll, &answer, 1ul, LOOK_MS);
        if (ready > 0 || (ready < 0 && errno != EINTR))
            return ready > 0;
        waited_ms = tcl_now_ms() - begin_ms;
    }
    *(is_grant ? &silent_until_ms : &late_until_ms) = tcl_now_ms() + SILENT_MS;
    return false;
}

/* Returns the descriptor that came along, or -1. */
static int receive_answer(int socket, struct tcl_pool_answer *answer) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } rights = {0};
    struct iovec vector = {answer, sizeof(*answer)};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = rights.bytes,
                             .msg_controllen = sizeof(rights.bytes)};
    long got = -1;
    int fd = -1;
    for (int i = 0; got < 0 && i < INTERRUPTS_MAX; i++) {
        got = syscall(SYS_recvmsg, socket, &message, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno != EINTR)
            break;
    }
    if (got >= 0 && rights.header.cmsg_type == SCM_RIGHTS &&
        rights.header.cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&fd, CMSG_DATA(&rights.header), sizeof(fd));
    if (got != sizeof(*answer) || answer->magic != TCL_POOL_MAGIC ||
        answer->version != TCL_WIRE_VERSION)
        answer->status = TCL_POOL_NONE;
    return fd;
}

/* One request; the answer's status is its result. */
static int exchange(struct tcl_pool_ask *question, struct tcl_pool_answer *answer) {
    answer->status = TCL_POOL_NONE;
    bool is_awaited = question->verb == TCL_POOL_GRANT || tcl_now_ms() >= late_until_ms;
    int fd = -1, socket = tcl_now_ms() < silent_until_ms ? -1 : tcl_daemon_connect(SHORT_WAIT_MS);
    if (socket < 0)
        return -1;
    question->magic = TCL_POOL_MAGIC;
    question->version = TCL_WIRE_VERSION;
    if (send_request(socket, question) && is_awaited && await_answer(socket, question))
        fd = receive_answer(socket, answer);
    syscall(SYS_close, socket);
    return fd;
}

/* A memfd that can shrink may raise SIGBUS later. Files of a pool's folder have no seals, but no
 * name either, by which a process other than the daemon could open them. */
static bool is_sound(int fd, size_t bytes, bool is_file) {
    struct stat stat;
    if (syscall(SYS_fstat, fd, &stat) || (size_t)stat.st_size != bytes)
        return false;
    int seals = is_file ? 0 : (int)syscall(SYS_fcntl, fd, F_GET_SEALS);
    return is_file ? S_ISREG(stat.st_mode) && stat.st_nlink == 0
                   : seals >= 0 && seals & F_SEAL_SHRINK;
}

bool vmem_pool_grant(int node, size_t bytes, bool huge, struct vmem_grant *grant) {
    struct tcl_pool_ask question = {
        .verb = TCL_POOL_GRANT, .node = node, .bytes = bytes, .vpage_shift = huge ? 21 : 12};
    struct tcl_pool_answer answer;
    int fd = exchange(&question, &answer);
    if (fd >= 0 && answer.status == TCL_POOL_OK && answer.number && answer.bytes == bytes &&
        is_sound(fd, bytes, answer.flags & TCL_POOL_FILE)) {
        *grant = (struct vmem_grant){.memfd = fd,
                                     .bytes = bytes,
                                     .number = answer.number,
                                     .secret = answer.secret,
                                     .is_emulated = answer.flags & TCL_POOL_EMULATED};
        return true;
    }
    if (fd >= 0)
        syscall(SYS_close, fd);
    errno = answer.status == TCL_POOL_EXHAUSTED ? ENOMEM : ENOENT;
    return false;
}

void vmem_pool_return(uint32_t number, uint64_t secret, bool is_shared) {
    struct tcl_pool_ask question = {.verb = is_shared ? TCL_POOL_LEAVE : TCL_POOL_RETURN,
                                    .number = number,
                                    .secret = secret};
    struct tcl_pool_answer answer;
    int saved = errno, fd = exchange(&question, &answer);
    if (fd >= 0)
        syscall(SYS_close, fd);
    errno = saved;
}
