/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_keeps.c: memory of the heap that moves keeps what it had: threads that wait on futexes in
 * it are woken, locks, advice and rights stay, registered buffers of io_uring stay valid, and a
 * debugger reads and writes it.
 *
 * Each part is a hosted program; this test's daemon requests moves of the one range that the
 * program names, again and again.
 */
#include "hazard.h"
#include <linux/io_uring.h>
#include <malloc.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>

#define MIB ((size_t)1 << 20)
#define OS_PAGE ((size_t)4096)
#define ABSENT_NODE 900 /* no machine has this node */
#define BOARD_FD 100    /* chosen: above what the program opens */
#define RW (PROT_READ | PROT_WRITE)

/* Between daemon and program, by an inherited memfd. */
struct board {
    _Atomic uint64_t addr, bytes;     /* what should move; 0: nothing */
    _Atomic uint64_t asked, answered; /* requests */
    _Atomic uint64_t moved;           /* bytes, of the last request */
    _Atomic int error;
    _Atomic int is_mover, is_traced;
};
static struct board *board;

static void map_board(bool create) {
    if (create) {
        int fd = memfd_create("board", 0);
        CHECK(fd >= 0 && !ftruncate(fd, OS_PAGE) && dup2(fd, BOARD_FD) == BOARD_FD && !close(fd));
    }
    board = mmap(NULL, OS_PAGE, RW, MAP_SHARED, BOARD_FD, 0);
    CHECK(board != MAP_FAILED);
}

/* ---- The program ----------------------------------------------------------------------------- */

/* A heap that is worth a mover; false: this kernel has none for us. */
static bool has_mover(void) {
    char *large = malloc(48 * MIB);
    hazard_sink = memset(large, 1, 48 * MIB);
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    if (fd < 0 && access("/dev/userfaultfd", R_OK | W_OK))
        return false;
    while (!atomic_load(&board->is_mover))
        sched_yield();
    return true;
}

static void stop_moves(void) {
    atomic_store(&board->bytes, 0);
    while (atomic_load(&board->answered) != atomic_load(&board->asked))
        sched_yield();
}

/* Has the range moved at least twice, and returns how many bytes moved the last time. */
static uint64_t moves_of(void *start, size_t bytes) {
    stop_moves();
    uint64_t before = atomic_load(&board->answered);
    atomic_store(&board->addr, (uintptr_t)start);
    atomic_store(&board->bytes, bytes);
    while (atomic_load(&board->answered) < before + 2)
        sched_yield();
    stop_moves();
    return atomic_load(&board->moved);
}

static char *object(size_t bytes, int content) {
    char *at = aligned_alloc(2 * MIB, bytes);
    CHECK(at);
    return memset(at, content, bytes);
}

/* A thread that sleeps in the kernel on a futex in [start, start + bytes). */
static void await_sleeper(const char *start, size_t bytes, pid_t thread) {
    char path[64], line[256];
    unsigned long number = 0, addr = 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", thread);
    while (number != SYS_futex || addr < (uintptr_t)start || addr >= (uintptr_t)start + bytes) {
        FILE *file = fopen(path, "re");
        number = addr = 0;
        CHECK(file);
        if (!fgets(line, sizeof(line), file) || sscanf(line, "%lu %lx", &number, &addr) != 2)
            number = 0;
        fclose(file);
        sched_yield();
    }
}

struct waits {
    char before[MIB];
    pthread_mutex_t robust, plain;
    pthread_cond_t shared;
    bool is_set;
    _Atomic pid_t sleeper;
    char after[MIB];
};

static void *wait_for_robust(void *argument) {
    struct waits *waits = argument;
    atomic_store(&waits->sleeper, (pid_t)syscall(SYS_gettid));
    CHECK(!pthread_mutex_lock(&waits->robust) && !pthread_mutex_unlock(&waits->robust));
    return NULL;
}

static void *wait_for_condition(void *argument) {
    struct waits *waits = argument;
    atomic_store(&waits->sleeper, (pid_t)syscall(SYS_gettid));
    pthread_mutex_lock(&waits->plain);
    while (!waits->is_set)
        pthread_cond_wait(&waits->shared, &waits->plain);
    pthread_mutex_unlock(&waits->plain);
    return NULL;
}

static struct waits *make_waits(void) {
    struct waits *waits = (void *)object(4 * MIB, 0);
    pthread_mutexattr_t mutex;
    pthread_condattr_t condition;
    pthread_mutexattr_init(&mutex);
    CHECK(!pthread_mutexattr_setrobust(&mutex, PTHREAD_MUTEX_ROBUST));
    pthread_condattr_init(&condition);
    CHECK(!pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED));
    CHECK(!pthread_mutex_init(&waits->robust, &mutex) && !pthread_mutex_init(&waits->plain, NULL));
    CHECK(!pthread_cond_init(&waits->shared, &condition));
    return waits;
}

static void *sleep_until_read(void *pipe) {
    char byte;
    CHECK(read(*(int *)pipe, &byte, 1) == 1);
    return NULL;
}

struct joiner {
    char *stack;
    pid_t main;
    int pipe[2];
};

static void *move_under_joiner(void *argument) {
    struct joiner *joiner = argument;
    await_sleeper(joiner->stack, MIB, joiner->main);
    CHECK(moves_of(joiner->stack, MIB) > 0);
    fork_once();
    CHECK(write(joiner->pipe[1], "", 1) == 1);
    return NULL;
}

/* The kernel wakes who joins, by a futex in the thread's stack. */
static void join_moved_stack(void) {
    struct joiner joiner = {object(2 * MIB, 0), getpid(), {0}};
    pthread_attr_t attributes;
    pthread_t thread, mover;
    CHECK(!pipe(joiner.pipe));
    pthread_attr_init(&attributes);
    CHECK(!pthread_attr_setstack(&attributes, joiner.stack, MIB));
    CHECK(!pthread_create(&thread, &attributes, sleep_until_read, &joiner.pipe[0]));
    CHECK(!pthread_create(&mover, NULL, move_under_joiner, &joiner));
    CHECK(!pthread_join(thread, NULL) && !pthread_join(mover, NULL));
}

static void futexes(void) {
    struct waits *waits = make_waits();
    void *(*const waiters[])(void *) = {wait_for_robust, wait_for_condition};
    for (int i = 0; i < 4; i++) { /* after one move, and after a move and a fork */
        pthread_t thread;
        waits->is_set = false;
        atomic_store(&waits->sleeper, 0);
        CHECK(!pthread_mutex_lock(&waits->robust));
        CHECK(!pthread_create(&thread, NULL, waiters[i % 2], waits));
        while (!atomic_load(&waits->sleeper))
            sched_yield();
        await_sleeper((char *)waits, sizeof(*waits), atomic_load(&waits->sleeper));
        CHECK(moves_of(waits, 4 * MIB) > 0);
        if (i >= 2)
            fork_once();
        CHECK(!pthread_mutex_unlock(&waits->robust));
        pthread_mutex_lock(&waits->plain);
        waits->is_set = true;
        pthread_cond_broadcast(&waits->shared);
        pthread_mutex_unlock(&waits->plain);
        CHECK(!pthread_join(thread, NULL));
    }
    join_moved_stack();
}

/* The line of the mapping's flags. */
static void read_flags(const char *at, char *flags) {
    char line[512];
    unsigned long from, to;
    bool is_it = false;
    FILE *maps = fopen("/proc/self/smaps", "re");
    CHECK(maps);
    *flags = 0;
    while (fgets(line, sizeof(line), maps)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            is_it = from <= (uintptr_t)at && (uintptr_t)at < to;
        else if (is_it && !strncmp(line, "VmFlags:", 8))
            strcpy(flags, line);
    }
    fclose(maps);
    CHECK(*flags);
}

enum { LOCKED, NO_DUMP, WIPED, NOT_FORKED, READ_ONLY, RAW_READ_ONLY, KEYED, PLAIN, PARTS };

/* Gives each MiB another property; false: this machine has no protection keys. */
static bool set_properties(char *start) {
    int key = pkey_alloc(0, 0);
    CHECK(!mlock(start + LOCKED * MIB, MIB));
    CHECK(!madvise(start + NO_DUMP * MIB, MIB, MADV_DONTDUMP));
    CHECK(!madvise(start + WIPED * MIB, MIB, MADV_WIPEONFORK));
    CHECK(!madvise(start + NOT_FORKED * MIB, MIB, MADV_DONTFORK));
    CHECK(!mprotect(start + READ_ONLY * MIB, MIB, PROT_READ));
    CHECK(!syscall(SYS_mprotect, start + RAW_READ_ONLY * MIB, MIB, PROT_READ));
    CHECK(key < 0 || !pkey_mprotect(start + KEYED * MIB, MIB, RW, key));
    CHECK(key < 0 || !pkey_set(key, PKEY_DISABLE_ACCESS));
    return key >= 0;
}

static void properties(void) {
    char *start = object(PARTS * MIB, 's');
    char before[PARTS][512], after[512];
    bool has_keys = set_properties(start);
    for (int i = 0; i < PARTS; i++)
        read_flags(start + i * MIB, before[i]);
    for (int i = 0; i < PARTS; i++) {
        uint64_t moved = moves_of(start + i * MIB, MIB);
        read_flags(start + i * MIB, after);
        CHECK(!strcmp(before[i], after), "part %d: %s became %s", i, before[i], after);
        CHECK(moved == MIB || i == LOCKED || i == READ_ONLY || i == RAW_READ_ONLY, "part %d", i);
        CHECK(moved == 0 || (i != LOCKED && i != RAW_READ_ONLY), "part %d moved", i);
    }
    for (int i = 0; i < PARTS; i++)
        CHECK((i == KEYED && has_keys) || start[i * MIB + 5] == 's', "part %d", i);
    pid_t child = fork();
    if (child == 0)
        _exit(start[WIPED * MIB + 5] != 0 || start[PLAIN * MIB + 5] != 's' ||
              msync(start + NOT_FORKED * MIB, OS_PAGE, MS_ASYNC) != -1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "%x", status);
    moves_of(start, PARTS * MIB); /* in one request: the rest moves */
    CHECK(atomic_load(&board->moved) >= 3 * MIB, "%lu", atomic_load(&board->moved));
}

struct ring {
    int fd;
    struct io_uring_params params;
    char *submissions, *completions;
    struct io_uring_sqe *entries;
};

static bool open_ring(struct ring *ring) {
    *ring = (struct ring){0};
    ring->fd = (int)syscall(SYS_io_uring_setup, 4, &ring->params);
    if (ring->fd < 0)
        return false;
    ring->submissions = mmap(NULL, OS_PAGE, RW, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->completions = mmap(NULL, OS_PAGE, RW, MAP_SHARED, ring->fd, IORING_OFF_CQ_RING);
    ring->entries = mmap(NULL, OS_PAGE, RW, MAP_SHARED, ring->fd, IORING_OFF_SQES);
    CHECK(ring->submissions != MAP_FAILED && ring->completions != MAP_FAILED);
    CHECK((void *)ring->entries != MAP_FAILED);
    return true;
}

/* Reads into the registered buffer. */
static void read_fixed(struct ring *ring, int file, char *to, unsigned bytes) {
    unsigned *tail = (void *)(ring->submissions + ring->params.sq_off.tail);
    unsigned *array = (void *)(ring->submissions + ring->params.sq_off.array);
    unsigned *head = (void *)(ring->completions + ring->params.cq_off.head);
    unsigned slot = *tail % ring->params.sq_entries;
    struct io_uring_cqe *done = (void *)(ring->completions + ring->params.cq_off.cqes);
    ring->entries[slot] = (struct io_uring_sqe){
        .opcode = IORING_OP_READ_FIXED, .fd = file, .addr = (uintptr_t)to, .len = bytes};
    array[slot] = slot;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
    CHECK(done[*head % ring->params.cq_entries].res == (int)bytes);
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
}

static void registered_buffers(void) {
    struct ring ring;
    char *buffer = object(2 * MIB, 'x');
    struct iovec vector = {buffer, MIB};
    int file = memfd_create("data", 0);
    if (!open_ring(&ring)) {
        puts("vmem_keeps: no io_uring here");
        return;
    }
    CHECK(file >= 0 && write(file, memset(malloc(OS_PAGE), 'D', OS_PAGE), OS_PAGE) == OS_PAGE);
    CHECK(!syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &vector, 1));
    CHECK(moves_of(buffer, 2 * MIB) == MIB, "all but what is registered");
    CHECK(atomic_load(&board->error) == EBUSY, "%d", atomic_load(&board->error));
    read_fixed(&ring, file, buffer + 64 * OS_PAGE, OS_PAGE);
    CHECK(buffer[64 * OS_PAGE] == 'D', "what the device wrote is lost");
    CHECK(!syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0));
    while (moves_of(buffer, 2 * MIB) != 2 * MIB) /* the kernel lets go a little later */
        ;
    CHECK(buffer[64 * OS_PAGE] == 'D' && buffer[2 * MIB - 1] == 'x');
}

/* The mover has no descriptor in the program's table. */
static void closed_descriptors(void) {
    uint64_t *words = (void *)object(4 * MIB, 0);
    atomic_store(&board->addr, (uintptr_t)words);
    atomic_store(&board->bytes, 4 * MIB);
    uint64_t before = atomic_load(&board->answered), count = 0;
    for (; atomic_load(&board->answered) < before + 20; count++) {
        CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
        for (size_t i = 0; i < 4 * MIB / 8; i += 64)
            CHECK(words[i]++ == count, "%zu of %lu", i, count);
    }
    stop_moves();
    CHECK(atomic_load(&board->moved) == 4 * MIB);
}

static void traced(void) {
    char *start = object(2 * MIB, 't');
    CHECK(moves_of(start, 2 * MIB) == 2 * MIB);
    atomic_store(&board->is_traced, 1);
    while (atomic_load(&board->is_traced) == 1)
        sched_yield();
    CHECK(moves_of(start, 2 * MIB) == 0, "moved before a debugger's eyes");
    CHECK(atomic_load(&board->error) == EPERM);
}

static int hosted(const char *part) {
    alarm(HANG_S);
    map_board(false);
    if (!has_mover())
        return 0;
    if (!strcmp(part, "futexes"))
        futexes();
    else if (!strcmp(part, "properties"))
        properties();
    else if (!strcmp(part, "buffers"))
        registered_buffers();
    else if (!strcmp(part, "descriptors"))
        closed_descriptors();
    else
        traced();
    stop_moves();
    return 0;
}

/* ---- The daemon ------------------------------------------------------------------------------ */

static void trace(pid_t pid) {
    CHECK(!ptrace(PTRACE_SEIZE, pid, NULL, NULL));
    atomic_store(&board->is_traced, 2);
}

/* One request at a time. */
static void request_moves(struct daemon *d) {
    struct session *s = d->session[0];
    struct tcl_control *control = control_of(s);
    uint32_t done = __atomic_load_n(&header_of(s)->moves_done, __ATOMIC_ACQUIRE);
    atomic_store(&board->is_mover, header_of(s)->is_mover);
    if (atomic_load(&board->is_traced) == 1)
        trace(s->pid);
    if (!header_of(s)->is_mover || done != control->moves_asked)
        return;
    if (atomic_load(&board->answered) != atomic_load(&board->asked)) {
        atomic_store(&board->moved, header_of(s)->moved[0].bytes);
        atomic_store(&board->error, header_of(s)->moved[0].error);
        atomic_fetch_add(&board->answered, 1);
    }
    atomic_fetch_add(&board->asked, 1); /* before the program's intent is read */
    uint64_t bytes = atomic_load(&board->bytes);
    if (!bytes) {
        atomic_fetch_sub(&board->asked, 1);
        return;
    }
    control->moves[0] =
        (struct tcl_move){.addr = atomic_load(&board->addr), .bytes = bytes, .node = ABSENT_NODE};
    control->move_count = 1;
    __atomic_store_n(&control->moves_asked, done + 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &control->moves_asked, 1 /* FUTEX_WAKE */, 1, NULL, NULL, 0);
}

static void set_backing(struct session *s) {
    control_of(s)->backing = TCL_BACKING_VMEM;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    const char *const parts[] = {"futexes", "properties", "buffers", "descriptors", "traced"};
    map_board(true);
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        struct daemon d = {.prepare = set_backing, .each_turn = request_moves};
        memset(board, 0, sizeof(*board));
        host(&d, parts[i]);
        CHECK(d.questions == 0, "a move waited for the daemon");
        close_daemon(&d);
    }
    puts("vmem_keeps: futexes, flags, registered buffers, descriptors and debuggers");
    return 0;
}
