/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_forks.c: forks of programs whose heap moves: beside threads that read lines and flush all
 * streams, and in a handler that interrupts an allocation of the program's only thread. The thread
 * of the runtime that moves the heap is none of the program's.
 *
 * The programs are alloc_fork_stdio and alloc_fork_handler; this test's daemon requests moves of
 * all their objects, all the time.
 */
#include "hazard.h"

#define MIB ((size_t)1 << 20)
#define ABSENT_NODE 900 /* no machine has this node */

static int hosted(const char *part) {
    char program[4200];
    snprintf(program, sizeof(program), "%s/%s", getenv("TIERCEL_TESTS"), part);
    hazard_sink = malloc(48 * MIB); /* the exec ends this heap, not the kind of backing */
    execl(program, program, NULL);
    fprintf(stderr, "%s: %s\n", part, strerror(errno));
    return 1;
}

static struct tcl_move requested[TCL_MOVES_MAX];
static uint32_t requested_count;
static uint64_t moved_bytes;

static void add_request(struct session *s, const struct known_object *found) {
    (void)s;
    if (requested_count < TCL_MOVES_MAX && found->bytes >= 4096)
        requested[requested_count++] =
            (struct tcl_move){.addr = found->addr, .bytes = found->bytes, .node = ABSENT_NODE};
}

/* To the last process that executes moves: the program after its exec. */
static void request_moves(struct daemon *d) {
    int last = d->sessions - 1;
    while (last > 0 && !header_of(d->session[last])->is_mover)
        last--;
    struct session *s = d->session[last];
    struct tcl_control *control = control_of(s);
    uint32_t done = __atomic_load_n(&header_of(s)->moves_done, __ATOMIC_ACQUIRE);
    if (!header_of(s)->is_mover || done != control->moves_asked)
        return;
    for (uint32_t i = 0; i < control->move_count; i++)
        moved_bytes += header_of(s)->moved[i].bytes;
    requested_count = 0;
    walk_table(s, add_request);
    memcpy(control->moves, requested, sizeof(requested));
    control->move_count = requested_count;
    __atomic_store_n(&control->moves_asked, done + 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &control->moves_asked, 1 /* FUTEX_WAKE */, 1, NULL, NULL, 0);
}

static void set_backing(struct session *s) {
    control_of(s)->backing = TCL_BACKING_VMEM;
}

/* The program before and after its exec. Its children are turned away. */
static void run(const char *part) {
    struct daemon d = {.prepare = set_backing, .each_turn = request_moves, .sessions_max = 2};
    open_daemon(&d);
    int status = serve(&d, start_hosted(&d, part));
    CHECK(status == 0, "%s: wait status %x, stderr: %s", part, status, errors_of(&d));
    printf("vmem_forks, %s: %lu MiB moved\n", part, moved_bytes >> 20);
    close_daemon(&d);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    run("alloc_fork_handler");
    run("alloc_fork_stdio");
    return 0;
}
