/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_room.c: room in the better arena under hazards. Births that are the kernel's cost no
 * budget; memory of dead objects on the wrong node is released; heads that the kernel refuses to
 * bind, for a filter or for want of mappings, are refunded; threads free while others are born and
 * a child forks, and all room returns. In: a session whose control page the test changes while the
 * program is stopped. Out: the budget that is left.
 */
#include "hazard.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>

#define MIB (1ull << 20)
#define LARGE (16 * MIB)
#define BUDGET ((int64_t)(7 * MIB + TCL_PAGE))
#define KEPT 64 /* objects that live between rounds */
#define ROUNDS 2000
#define THREADS 4
/* What the caches of threads that ended may have kept: see CREDIT_MAX of birth.c. */
#define CREDITS ((int64_t)(THREADS + 1) * 2 * TCL_BIRTH_CREDIT)

static void fill(uint64_t *p, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes / 8; i += 64)
        p[i] = i * 31 + seed;
}
static void check(const uint64_t *p, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes / 8; i += 64)
        CHECK(p[i] == i * 31 + seed, "word %zu", i);
}

/* Allocates, checks and frees again and again in memory of dead objects. */
static void reuse(void) {
    for (uint64_t round = 0; round < 300; round++) {
        uint64_t *kept = malloc(2 * MIB), *zero;
        fill(kept, 2 * MIB, round);
        uint64_t *dead = malloc(3 * MIB);
        fill(dead, 3 * MIB, round);
        free(dead);
        zero = calloc(3, MIB);
        for (size_t i = 0; i < 3 * MIB / 8; i += 64)
            CHECK(zero[i] == 0, "word %zu of zeros", i);
        zero = realloc(zero, 5 * MIB);
        fill(zero, 5 * MIB, ~round);
        check(kept, 2 * MIB, round);
        check(zero, 5 * MIB, ~round);
        free(zero);
        free(kept);
    }
}

static void refuse_mbind(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "filter");
}

static void make_large(size_t bytes) {
    uint64_t *p = malloc(bytes);
    CHECK(p, "no memory");
    fill(p, bytes, 3);
    check(p, bytes, 3);
    raise(SIGSTOP);
    free(p);
}

/* Uses up all mappings that a process may have. Most of them are in the area returned. */
static void *exhaust_mappings(size_t *bytes) {
    *bytes = (size_t)1 << 30;
    char *area = mmap(NULL, *bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(area != MAP_FAILED, "no area");
    for (size_t at = 0; at < *bytes; at += 2 * TCL_PAGE)
        if (syscall(SYS_mprotect, area + at, TCL_PAGE, PROT_READ) != 0)
            break;
    /* Each call above takes two; a last one may be left. */
    for (int i = 0, kind; i < 16; i++) {
        kind = i % 2 ? PROT_READ : PROT_WRITE;
        syscall(SYS_mmap, NULL, TCL_PAGE, kind, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    return area;
}

static _Atomic(uint64_t *) kept[KEPT];

/* Exchanges objects with other threads: what one allocated another frees. */
static void *work(void *number) {
    uint64_t random = (uint64_t)(uintptr_t)number * 0x9e3779b97f4a7c15ull | 1;
    for (int round = 0; round < ROUNDS; round++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        size_t bytes = 4096 + (random >> 40) % (3 * MIB);
        uint64_t *p = malloc(bytes);
        CHECK(p, "no memory");
        *p = bytes;
        if (round % 7 == 0)
            p = realloc(p, *p / 2 + 8);
        free(atomic_exchange(&kept[random % KEPT], p));
    }
    return NULL;
}

static void run_threads(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0, "thread");
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(0);
        int status;
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "child");
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < KEPT; i++)
        free(atomic_exchange(&kept[i], NULL));
}

static int hosted(void) {
    raise(SIGSTOP); /* births by the kernel, on the right node */
    reuse();
    raise(SIGSTOP); /* on a node that does not exist: no trial succeeds */
    reuse();
    raise(SIGSTOP); /* within the budget */
    run_threads();
    raise(SIGSTOP); /* a head, as no mapping is missing */
    make_large(LARGE);
    raise(SIGSTOP);
    void *in_front = malloc(2 * LARGE); /* of memory that no head was in, which is opened here */
    free(malloc(4 * LARGE));
    raise(SIGSTOP);
    size_t bytes;
    void *area = exhaust_mappings(&bytes);
    make_large(2 * LARGE);
    syscall(SYS_munmap, area, bytes);
    free(in_front);
    raise(SIGSTOP);
    refuse_mbind();
    make_large(LARGE);
    raise(SIGSTOP);
    return 0;
}

static void prepare(struct session *s) {
    control_of(s)->arena_count = 2; /* the first on node 0, the one there is everywhere */
    control_of(s)->arena_node[1] = TCL_NODE_MODELLED; /* so that a head is another mapping */
    control_of(s)->kernel_arena = 3;
    control_of(s)->fast_nodes = 1;
}

/* But for what threads keep, or return late. */
static bool is_whole(int64_t left) {
    return left >= BUDGET - CREDITS && left <= BUDGET + CREDITS;
}

/* In a child of a build machine's container the kernel may refuse to bind at all. */
static bool may_bind(void) {
    void *page = mmap(NULL, TCL_PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long mask = 1;
    return syscall(SYS_mbind, page, TCL_PAGE, 1, &mask, 65, 0) == 0;
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1)
        return hosted();
    struct daemon d = {.prepare = prepare};
    open_daemon(&d);
    pid_t pid = start_hosted(&d, "hosted");
    struct session *s = first_session(&d);
    wait_stop(pid);
    int64_t left = left_after(s, pid, BUDGET);
    CHECK(left == BUDGET, "%ld left: births by the kernel cost nothing", left);
    CHECK(header_of(s)->idle_bytes[2] > 0, "no dead memory in the kernel's arena");
    control_of(s)->fast_nodes = 2;
    left = left_after(s, pid, BUDGET);
    CHECK(left == BUDGET, "%ld left", left);
    control_of(s)->kernel_arena = 0;
    left = left_after(s, pid, BUDGET);
    CHECK(is_whole(left), "%ld of %ld returned", left, BUDGET);
    left = left_after(s, pid, BUDGET);
    int64_t bound = may_bind() ? 0 : BUDGET;
    CHECK(left == bound, "%ld left of the budget: a head", left);
    int64_t before = left;
    left = left_after(s, pid, before);
    CHECK(is_whole(left), "%ld left: it returns", left);
    left_after(s, pid, 0);
    left = left_after(s, pid, BUDGET);
    CHECK(is_whole(left), "%ld left: no mapping for a head", left);
    left = left_after(s, pid, BUDGET);
    CHECK(is_whole(left), "%ld left", left);
    left = left_after(s, pid, BUDGET);
    CHECK(is_whole(left), "%ld left: the kernel refused to bind the head", left);
    kill(pid, SIGCONT);
    wait_stop(pid);
    kill(pid, SIGCONT);
    int status = serve(&d, pid);
    CHECK(status == 0, "wait status %x, stderr: %s", status, errors_of(&d));
    check_objects(s);
    printf(
        "track_room: room is taken and returned, to the OS page, also where the kernel refuses\n");
    close_daemon(&d);
    return 0;
}
