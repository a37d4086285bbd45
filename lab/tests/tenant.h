/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * tenant.h: a client of a daemon without the runtime: it says what it likes.
 * In: a socket's path, messages. Out: answers. Knows nothing of what is a lie.
 */
#ifndef TENANT_H
#define TENANT_H

#include "../../include/tiercel_wire.h"
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define RANGE_BASE 0x100000000000ull /* of a heap that does not exist */
#define ANSWER_MS 10000              /* longer than any daemon may take. Chosen */
#define NO_ANSWER 1000               /* no status of a welcome or of a pool */

struct tenant {
    int memfd;
    uint64_t bytes;
    char *base;
};

__attribute__((unused)) static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

__attribute__((unused)) static struct tcl_header *header_of(const struct tenant *tenant) {
    return (void *)(tenant->base + TCL_HEADER_AT);
}

__attribute__((unused)) static struct tcl_ring *ring_of(const struct tenant *tenant, uint32_t i) {
    return (void *)(tenant->base + TCL_RINGS_AT + i * sizeof(struct tcl_ring));
}

__attribute__((unused)) static int connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
    if (fd >= 0 && !connect(fd, (void *)&address, sizeof(address)))
        return fd;
    close(fd);
    return -1;
}

/* A session whose heap has so many OS pages. */
__attribute__((unused)) static struct tenant make_tenant(uint64_t pages) {
    struct tenant tenant = {.memfd = memfd_create("tenant", MFD_ALLOW_SEALING | MFD_CLOEXEC)};
    tenant.bytes =
        (TCL_RUNS_AT + pages * sizeof(struct tcl_run) + TCL_PAGE - 1) / TCL_PAGE * TCL_PAGE;
    if (tenant.memfd < 0 || ftruncate(tenant.memfd, (off_t)tenant.bytes) ||
        fcntl(tenant.memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
        exit(1);
    int flags = MAP_SHARED | MAP_NORESERVE;
    tenant.base = mmap(NULL, tenant.bytes, PROT_READ | PROT_WRITE, flags, tenant.memfd, 0);
    if (tenant.base == MAP_FAILED)
        exit(1);
    *header_of(&tenant) = (struct tcl_header){.magic = TCL_MAGIC,
                                              .version = TCL_WIRE_VERSION,
                                              .total_bytes = tenant.bytes,
                                              .range_base = pages ? RANGE_BASE : 0,
                                              .range_pages = pages,
                                              .pid = (uint32_t)getpid()};
    return tenant;
}

__attribute__((unused)) static void drop_tenant(struct tenant *tenant) {
    munmap(tenant->base, tenant->bytes);
    close(tenant->memfd);
}

__attribute__((unused)) static bool say(int to, const void *bytes, size_t count, const int *fds,
                                        size_t fd_count) {
    char rights[CMSG_SPACE(8 * sizeof(int))] = {0};
    struct iovec vector = {(void *)bytes, count};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (fd_count > 0) {
        message.msg_control = rights;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
    }
    return sendmsg(to, &message, MSG_NOSIGNAL) == (ssize_t)count;
}

__attribute__((unused)) static struct tcl_hello hello_of(pid_t pid, uint64_t bytes) {
    return (struct tcl_hello){.magic = TCL_MAGIC,
                              .version = TCL_WIRE_VERSION,
                              .pid = (uint32_t)pid,
                              .total_bytes = bytes};
}

__attribute__((unused)) static bool say_hello(int to, const struct tenant *tenant) {
    struct tcl_hello hello = hello_of(getpid(), tenant->bytes);
    return say(to, &hello, sizeof(hello), &tenant->memfd, 1);
}

/* The status of the answer. */
__attribute__((unused)) static unsigned await_welcome(int from) {
    struct tcl_welcome welcome = {0};
    struct pollfd ready = {from, POLLIN, 0};
    bool is_answered = poll(&ready, 1, ANSWER_MS) == 1 &&
                       recv(from, &welcome, sizeof(welcome), 0) == sizeof(welcome);
    return is_answered ? welcome.status : NO_ANSWER;
}

__attribute__((unused)) static unsigned attach(const char *path, const struct tenant *tenant) {
    int fd = connect_to(path);
    unsigned status = fd >= 0 && say_hello(fd, tenant) ? await_welcome(fd) : NO_ANSWER;
    if (fd >= 0)
        close(fd);
    return status;
}

/* Asks the pools over this connection; *memfd is what comes with the answer, or -1. */
__attribute__((unused)) static struct tcl_pool_answer ask_over(int fd, struct tcl_pool_ask question,
                                                               int *memfd) {
    struct tcl_pool_answer answer = {.status = NO_ANSWER};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } rights = {0};
    struct iovec vector = {&answer, sizeof(answer)};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = rights.bytes,
                             .msg_controllen = sizeof(rights.bytes)};
    struct pollfd ready = {fd, POLLIN, 0};
    question.magic = TCL_POOL_MAGIC;
    question.version = TCL_WIRE_VERSION;
    *memfd = -1;
    if (!say(fd, &question, sizeof(question), NULL, 0) || poll(&ready, 1, ANSWER_MS) != 1 ||
        recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != sizeof(answer))
        answer.status = NO_ANSWER;
    else if (rights.header.cmsg_type == SCM_RIGHTS)
        memcpy(memfd, CMSG_DATA(&rights.header), sizeof(int));
    return answer;
}

__attribute__((unused)) static struct tcl_pool_answer
ask_pool(const char *path, struct tcl_pool_ask question, int *memfd) {
    int fd = connect_to(path);
    *memfd = -1;
    if (fd < 0)
        return (struct tcl_pool_answer){.status = NO_ANSWER};
    struct tcl_pool_answer answer = ask_over(fd, question, memfd);
    close(fd);
    return answer;
}

#endif
