/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * hazard.h: a small daemon for tests, and the program it serves, in one executable.
 * In: a function that does something hazardous. Out: its exit status, and what the daemon recorded.
 * Knows nothing of heat or placement.
 *
 * A test starts itself again as the hosted program, with TIERCEL_SOCKET set; the first process
 * serves it. The set of objects is derived twice: from records by version, and from the object
 * table. Both must agree.
 */
#ifndef HAZARD_H
#define HAZARD_H

#include "check.h"
#include "tiercel_wire.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
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
#include <unistd.h>

#define SESSIONS_MAX 64         /* chosen: several times what any test has */
#define OBJECT_SLOTS (1u << 17) /* chosen: more than any test has addresses */
#define POLL_MS 5               /* chosen: much less than READER_GONE_MS of ring.c */

/* The last thing known of an address. */
struct known_object {
    uint64_t addr, bytes;
    uint32_t carve, site;
    uint16_t generation;
    bool alive;
};

struct session {
    struct tcl_hello hello;
    pid_t pid;
    char *base;
    int memfd;
    size_t bytes;
    bool replaces_another; /* the same process had a session before */
    uint64_t tail[TCL_RINGS_MAX], lost, records, kinds[16], without_ring;
    uint64_t fresh_bytes; /* of objects born in memory that was not touched before */
    uint64_t ring_lost[TCL_RINGS_MAX];
    struct known_object *objects;
};

struct daemon {
    int listener;
    char folder[64], path[108], errors[108], offer_path[120], greeted[120];
    struct tcl_offer *offer; /* processes attach as they start, unless a test changes it */
    struct session *session[SESSIONS_MAX];
    int sessions;
    /* Faults of this daemon. */
    bool is_mute, answers_garbage, never_drains, fills_control_with_garbage;
    uint32_t status;  /* of its welcomes */
    int questions;    /* to the pools */
    bool grants;      /* it answers those for a segment, and no others */
    int sessions_max; /* later ones are turned away; 0: there must be none */
    /* What it writes into the control page of the offer, and of a session before it answers. */
    void (*prepare)(struct session *);
    /* What it does beside draining, once there is a session. */
    void (*each_turn)(struct daemon *);
};

__attribute__((unused)) static volatile void *hazard_sink;

static inline struct tcl_header *header_of(struct session *s) {
    return (void *)s->base;
}
static inline struct tcl_control *control_of(struct session *s) {
    return (void *)(s->base + TCL_CONTROL_AT);
}

static struct known_object *find_object(struct session *s, uint64_t addr) {
    uint32_t at = (uint32_t)(addr >> 12) * 2654435761u % OBJECT_SLOTS;
    while (s->objects[at].addr && s->objects[at].addr != addr)
        at = (at + 1) % OBJECT_SLOTS;
    s->objects[at].addr = addr;
    return &s->objects[at];
}

static bool is_newer(uint32_t carve, uint16_t generation, const struct known_object *page) {
    int32_t d = (int32_t)(carve - page->carve);
    return d > 0 || (d == 0 && (int16_t)(generation - page->generation) > 0);
}

static void apply(struct session *s, const struct tcl_record *r) {
    s->records++;
    s->kinds[r->kind & 15]++;
    if (r->kind == TCL_BORN && r->flags_low & TCL_FRESH)
        s->fresh_bytes += r->size & (((uint64_t)1 << TCL_SIZE_BITS) - 1);
    if (r->kind < TCL_BORN || r->kind > TCL_RESIZED)
        return;
    struct known_object *page = find_object(s, r->addr);
    bool newer = is_newer(r->carve, r->generation, page);
    bool same = r->carve == page->carve && r->generation == page->generation;
    if (newer || (same && r->kind == TCL_DIED))
        *page = (struct known_object){r->addr,       r->size & ((1ull << TCL_SIZE_BITS) - 1),
                                      r->carve,      r->site,
                                      r->generation, r->kind != TCL_DIED};
}

static void drain(struct session *s) {
    uint32_t rings = __atomic_load_n(&header_of(s)->ring_high_water, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < rings && i < TCL_RINGS_MAX; i++) {
        struct tcl_ring *ring = (void *)(s->base + TCL_RINGS_AT + i * sizeof(struct tcl_ring));
        s->lost += ring->lost - s->ring_lost[i];
        s->ring_lost[i] = ring->lost;
        uint64_t head = __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE);
        /* A thread that was about to publish a record when the process attached again publishes the
         * head of its old ring in the new session. The ring's next owner corrects it; until then
         * the daemon skips the ring, and rescans. */
        if (s->replaces_another && head - s->tail[i] > TCL_RING_RECORDS)
            continue;
        CHECK(head - s->tail[i] <= TCL_RING_RECORDS, "ring %u: head %lu, tail %lu", i, head,
              s->tail[i]);
        for (; s->tail[i] < head; s->tail[i]++)
            apply(s, &ring->records[s->tail[i] % TCL_RING_RECORDS]);
        __atomic_store_n(&ring->tail, s->tail[i], __ATOMIC_RELEASE);
    }
    s->without_ring = header_of(s)->lost_without_ring;
}

/* Calls `each` for the live objects of the table. */
static void walk_table(struct session *s,
                       void (*each)(struct session *, const struct known_object *)) {
    struct tcl_run *runs = (void *)(s->base + TCL_RUNS_AT);
    struct tcl_map *maps = (void *)(s->base + TCL_MAPS_AT);
    for (uint64_t i = 0; i < header_of(s)->run_high_water; i++) {
        if (i % 256 == 0) { /* skip holes of the memfd, which reading would populate */
            off_t data = lseek(s->memfd, (off_t)(TCL_RUNS_AT + i * sizeof(*runs)), SEEK_DATA);
            if (data < 0)
                break;
            i = ((uint64_t)data - TCL_RUNS_AT) / sizeof(*runs);
        }
        if (runs[i].shape)
            each(s, &(struct known_object){header_of(s)->range_base + i * 4096,
                                           (runs[i].shape >> 32) * 4096, (uint32_t)runs[i].shape,
                                           (uint32_t)(runs[i].identity >> 32),
                                           (uint16_t)(runs[i].identity >> 16), true});
    }
    for (uint32_t i = 0; i < header_of(s)->map_high_water; i++)
        if (maps[i].addr)
            each(s, &(struct known_object){maps[i].addr, maps[i].size, maps[i].carve, maps[i].site,
                                           maps[i].generation, true});
}

static void adopt_entry(struct session *s, const struct known_object *found) {
    struct known_object *page = find_object(s, found->addr);
    if (!page->alive || is_newer(found->carve, found->generation, page))
        *page = *found;
}

static uint64_t in_table;
static void compare_entry(struct session *s, const struct known_object *found) {
    struct known_object *page = find_object(s, found->addr);
    in_table++;
    CHECK(page->alive && page->bytes == found->bytes && page->carve == found->carve &&
              page->generation == found->generation && page->site == found->site,
          "%lx: table %lu bytes v%u.%u site %u, records %s %lu bytes v%u.%u site %u", found->addr,
          found->bytes, found->carve, found->generation, found->site,
          page->alive ? "alive" : "dead", page->bytes, page->carve, page->generation, page->site);
}

static uint64_t live_objects(struct session *s) {
    uint64_t live = 0;
    for (uint32_t i = 0; i < OBJECT_SLOTS; i++)
        live += s->objects[i].alive;
    return live;
}

/* After a process ended: records and object table must agree. */
__attribute__((unused)) static void check_objects(struct session *s) {
    drain(s);
    if (s->lost + s->without_ring)
        return; /* then only the table is complete */
    in_table = 0;
    walk_table(s, compare_entry);
    CHECK(in_table == live_objects(s), "table %lu, records %lu", in_table, live_objects(s));
}

static void answer(struct daemon *d, struct session *s) {
    struct tcl_control *control = control_of(s);
    control->session = (uint32_t)d->sessions;
    uint32_t word = d->answers_garbage ? 0xa5a5a5a5 : 1 + d->status;
    __atomic_store_n(&control->answer, word, __ATOMIC_RELEASE);
    if (d->status)
        __atomic_store_n(&control->detach, 1, __ATOMIC_RELEASE);
}

/* A segment, if that is what is asked. */
static void answer_question(struct daemon *d, int socket, const struct tcl_pool_ask *question) {
    struct tcl_pool_answer answer = {.magic = TCL_POOL_MAGIC,
                                     .version = TCL_WIRE_VERSION,
                                     .status = TCL_POOL_OK,
                                     .number = (uint32_t)++d->questions,
                                     .bytes = question->bytes};
    if (!d->grants || question->verb != TCL_POOL_GRANT)
        return;
    char rights[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec vector = {&answer, sizeof(answer)};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = rights,
                             .msg_controllen = sizeof(rights)};
    int memfd = memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(memfd >= 0 && !ftruncate(memfd, (off_t)question->bytes));
    CHECK(!fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &memfd, sizeof(int));
    CHECK(sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof(answer));
    close(memfd);
}

static void accept_session(struct daemon *d) {
    int socket = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
    if (socket >= 0 && d->sessions_max && d->sessions >= d->sessions_max)
        close(socket);
    if (socket < 0 || (d->sessions_max && d->sessions >= d->sessions_max))
        return;
    struct session *s = calloc(1, sizeof(*s));
    union {
        struct tcl_hello hello;
        struct tcl_pool_ask question;
    } words = {0};
    char rights[CMSG_SPACE(sizeof(int))];
    struct iovec vector = {&words, sizeof(words)};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = rights,
                             .msg_controllen = sizeof(rights)};
    struct ucred peer;
    socklen_t length = sizeof(peer);
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    s->hello = words.hello;
    if (got == sizeof(words.question) && words.hello.magic == TCL_POOL_MAGIC)
        answer_question(d, socket, &words.question);
    if (d->is_mute || got != sizeof(s->hello) || !control) {
        if (!d->is_mute)
            close(socket); /* a process that gave up attaching; a mute daemon keeps it open */
        free(s);
        return;
    }
    getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length);
    s->pid = peer.pid;
    int memfd = *(int *)CMSG_DATA(control);
    int seals = fcntl(memfd, F_GET_SEALS);
    CHECK((seals & F_SEAL_SHRINK) && (seals & F_SEAL_GROW), "seals %x", seals);
    s->bytes = s->hello.total_bytes;
    s->base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memfd, 0);
    CHECK(s->base != MAP_FAILED);
    s->objects = calloc(OBJECT_SLOTS, sizeof(*s->objects));
    s->memfd = memfd;
    for (int i = 0; i < d->sessions; i++)
        s->replaces_another |= d->session[i]->pid == s->pid;
    if (d->fills_control_with_garbage)
        memset(control_of(s), 0xa5, sizeof(struct tcl_control)), control_of(s)->detach = 0;
    if (d->prepare)
        d->prepare(s);
    walk_table(s, adopt_entry);
    CHECK(d->sessions < SESSIONS_MAX, "sessions");
    d->session[d->sessions++] = s;
    answer(d, s);
    close(open(d->greeted, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    close(socket);
}

static struct tcl_control *offered_control(struct daemon *d) {
    return (void *)((char *)d->offer + TCL_CONTROL_AT);
}

static void open_offer(struct daemon *d) {
    snprintf(d->offer_path, sizeof(d->offer_path), "%s" TCL_OFFER_SUFFIX, d->path);
    int fd = open(d->offer_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && !ftruncate(fd, TCL_OFFER_BYTES));
    d->offer = mmap(NULL, TCL_OFFER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(d->offer != MAP_FAILED);
    close(fd);
    *d->offer =
        (struct tcl_offer){.magic = TCL_MAGIC, .version = TCL_WIRE_VERSION, .is_counted = 1};
    d->offer->userfaultfds = TCL_UFFDS_MAX;
    memset(offered_control(d)->space_arena, TCL_ARENA_UNKNOWN, TCL_SPACES);
    struct session front = {.base = (char *)d->offer}; /* which an offer has as well */
    if (d->prepare)
        d->prepare(&front);
}

__attribute__((unused)) static void open_daemon(struct daemon *d) {
    strcpy(d->folder, "/tmp/tiercel-test-XXXXXX");
    CHECK(mkdtemp(d->folder));
    snprintf(d->path, sizeof(d->path), "%s/socket", d->folder);
    snprintf(d->greeted, sizeof(d->greeted), "%s.greeted", d->path);
    snprintf(d->errors, sizeof(d->errors), "%s/stderr", d->folder);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, d->path);
    d->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(!bind(d->listener, (void *)&address, sizeof(address)));
    CHECK(!listen(d->listener, 64));
    open_offer(d);
}

__attribute__((unused)) static void close_daemon(struct daemon *d) {
    for (; d->sessions; d->sessions--) {
        struct session *s = d->session[d->sessions - 1];
        close(s->memfd);
        munmap(s->base, s->bytes);
        free(s->objects);
        free(s);
    }
    close(d->listener);
    munmap(d->offer, TCL_OFFER_BYTES);
    unlink(d->path);
    unlink(d->offer_path);
    unlink(d->greeted);
    unlink(d->errors);
    rmdir(d->folder);
}

/* Starts this program again as the hosted one: argv[1] = part. Its stderr goes to d->errors. */
__attribute__((unused)) static pid_t start_hosted(struct daemon *d, const char *part) {
    setenv(TCL_SOCKET_ENV, d->path, 1);
    pid_t pid;
    char *argv[] = {"/proc/self/exe", (char *)part, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, d->errors, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int error = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ);
    CHECK(!error, "%s", strerror(error));
    posix_spawn_file_actions_destroy(&actions);
    unsetenv(TCL_SOCKET_ENV);
    return pid;
}

/* In the hosted program: returns when the daemon has greeted a process. */
__attribute__((unused)) static void await_greeting(void) {
    char greeted[120];
    snprintf(greeted, sizeof(greeted), "%s.greeted", getenv(TCL_SOCKET_ENV));
    while (access(greeted, F_OK))
        sched_yield();
}

/* The session of the first program that attaches. */
__attribute__((unused)) static struct session *first_session(struct daemon *d) {
    while (d->sessions == 0) {
        struct pollfd wait = {d->listener, POLLIN, 0};
        CHECK(poll(&wait, 1, 10000) == 1, "no program attached");
        accept_session(d);
    }
    return d->session[0];
}

/* Waits until a hosted program has stopped itself. */
__attribute__((unused)) static void wait_stop(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status), "%x", status);
}

/* Two arenas, whose memory the kernel places, and what may be born in the better one. */
__attribute__((unused)) static void two_arenas(struct session *s, int64_t left) {
    struct tcl_control *control = control_of(s);
    control->arena_node[0] = control->arena_node[1] = TCL_NODE_MODELLED;
    control->birth_bytes_left[0] = left;
    control->arena_count = 2;
}
__attribute__((unused)) static void with_room(struct session *s) {
    two_arenas(s, 1ll << 30);
}
__attribute__((unused)) static void without_room(struct session *s) {
    two_arenas(s, 0);
}

/* In the hosted program: `work` by so many threads, each with its number. */
__attribute__((unused)) static void run_in_threads(unsigned count, void *(*work)(void *)) {
    pthread_t threads[16];
    CHECK(count <= 16);
    for (uintptr_t i = 0; i < count; i++)
        CHECK(!pthread_create(&threads[i], NULL, work, (void *)i));
    for (unsigned i = 0; i < count; i++)
        CHECK(!pthread_join(threads[i], NULL));
}

/* Continues a stopped program with this budget of the better arena; what is left of it when the
 * program stops again. */
__attribute__((unused)) static int64_t left_after(struct session *s, pid_t pid, int64_t left) {
    control_of(s)->birth_bytes_left[0] = left;
    kill(pid, SIGCONT);
    wait_stop(pid);
    return control_of(s)->birth_bytes_left[0];
}

/* Serves until the process has ended; returns its wait status. */
__attribute__((unused)) static int serve(struct daemon *d, pid_t pid) {
    int status, pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    bool gone = false;
    while (!gone) {
        struct pollfd wait[2] = {{pidfd, POLLIN, 0}, {d->listener, POLLIN, 0}};
        poll(wait, 2, POLL_MS);
        gone = wait[0].revents & POLLIN;
        if (wait[1].revents & POLLIN)
            accept_session(d);
        for (int i = 0; i < d->sessions && !d->never_drains; i++)
            drain(d->session[i]);
        if (d->each_turn && d->sessions > 0)
            d->each_turn(d);
    }
    waitpid(pid, &status, 0);
    close(pidfd);
    return status;
}

/* What the hosted program wrote to stderr. */
__attribute__((unused)) static const char *errors_of(struct daemon *d) {
    static char text[4096];
    int fd = open(d->errors, O_RDONLY);
    ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    text[got > 0 ? got : 0] = 0;
    close(fd);
    return text;
}

/* Runs the part under a good daemon, and checks its status, that stderr is empty, and its objects.
 * The caller checks the sessions, and closes the daemon. */
__attribute__((unused)) static void host(struct daemon *d, const char *part) {
    open_daemon(d);
    int status = serve(d, start_hosted(d, part));
    CHECK(status == 0, "wait status %x, stderr: %s", status, errors_of(d));
    CHECK(!*errors_of(d), "said: %s", errors_of(d));
    CHECK(d->sessions > 0, "no session");
    for (int i = 0; i < d->sessions; i++)
        check_objects(d->session[i]);
}

/* Something to track: allocations of many sizes from many depths, half of them kept. */
__attribute__((unused, noinline)) static void churn(unsigned rounds, unsigned seed) {
    void *slot[64] = {0};
    for (unsigned i = 0; i < rounds; i++) {
        seed = seed * 1664525u + 1013904223u;
        unsigned at = seed >> 26;
        free(slot[at]);
        size_t bytes = 16 + (seed >> 8) % 200000;
        slot[at] = malloc(bytes);
        CHECK(slot[at], "no memory");
        memset(slot[at], (int)i, bytes < 64 ? bytes : 64);
        if (i % 7 == 0)
            slot[at] = realloc(slot[at], bytes * 2);
    }
    for (int i = 0; i < 64; i += 2)
        free(slot[i]);
    hazard_sink = slot[1];
}

#endif
