/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * self_moves.c: moves that the daemon requests and the program itself executes.
 * In: requests in the control page. Out: their results, in the session's header. Knows nothing of
 * how vpages move.
 *
 *   daemon    moves[], move_count -> moves_asked ~~futex~~>  one thread of the runtime
 *             moved[] <- moves_done <~~futex~~               piece by piece, while it is requested
 *
 * A new number in moves_asked cancels the request before; then at most one piece is moved in vain.
 * The thread starts only where the heap consists of vregions and writes can be tracked. In a
 * program with one thread it starts as late as at the first birth of a large object in a heap that
 * is worth moving: with a second thread libc takes a lock in every getc, which cost sqlite3 6%. A
 * forked child has no such thread: the kernel moves its memory.
 */
#include "../track/session.h"
#include "region.h"
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Time between two checks whether the session is another. Chosen, not measured: it may be late. */
#define POLL_S 1

/* The kernel moves a smaller heap. Chosen, not measured: see the cost of a second thread above. */
#define HEAP_BYTES_MIN ((size_t)16 << 20)

_Atomic bool tcl_vmem_start_pending;
static long pending_process; /* the process that will start the thread */
static _Atomic bool is_running, must_end;
static uint32_t current;

static bool is_wanted(void) {
    struct tcl_control *control = tcl_control();
    return tcl_attached() && !__atomic_load_n(&control->detach, __ATOMIC_RELAXED) &&
           __atomic_load_n(&control->moves_asked, __ATOMIC_ACQUIRE) == current;
}

static struct tcl_moved execute(struct tcl_move move) {
    struct tcl_moved moved = {.error = EINVAL};
    int error = 0;
    if (move.addr % TCL_PAGE || move.bytes % TCL_PAGE || move.addr + move.bytes < move.addr ||
        move.node < 0 || move.node >= VMEM_NODES_MAX)
        return moved;
    moved.bytes = vmem_move_range(move.addr, move.bytes, move.node, is_wanted, &error);
    moved.error = error;
    return moved;
}

static void execute_request(void) {
    struct tcl_header *header = tcl_header();
    struct tcl_control *control = tcl_control();
    uint32_t count = __atomic_load_n(&control->move_count, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < count && i < TCL_MOVES_MAX && is_wanted(); i++)
        header->moved[i] = execute(control->moves[i]);
    __atomic_store_n(&header->moves_done, current, __ATOMIC_RELEASE);
    syscall(SYS_futex, &header->moves_done, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void set_running(bool is_so) {
    atomic_store(&is_running, is_so);
    if (tcl_attached())
        tcl_header()->is_mover = is_so;
}

static void *serve(void *nothing) {
    uint32_t epoch = 0;
    bool can_move = vmem_private_start();
    if (can_move)
        set_running(true);
    while (can_move && !tcl_is_filtered() && !atomic_load(&must_end)) {
        struct timespec timeout = {POLL_S, 0};
        uint32_t now = atomic_load_explicit(&tcl_process->epoch, memory_order_acquire);
        if (now != epoch) { /* another session, which has no request yet */
            epoch = now;
            current = 0;
        }
        uint32_t asked = now ? __atomic_load_n(&tcl_control()->moves_asked, __ATOMIC_ACQUIRE) : 0;
        if (now && asked != current) {
            current = asked;
            execute_request();
            continue;
        }
        syscall(SYS_futex, &tcl_control()->moves_asked, FUTEX_WAIT, asked, &timeout, NULL, 0);
    }
    set_running(false);
    vmem_end_thread();
    return nothing;
}

/* Pairs with the looks at the filter under the lock. A child of a raw clone may have a copy of the
 * lock that no thread will release. */
void tcl_vmem_await_move(void) {
    if (pending_process && syscall(SYS_getpid) == pending_process) {
        vmem_lock();
        vmem_unlock();
    }
}

/* Under the lock, so that no filter comes in between, which may kill for the look. */
static bool is_guard_done(void) {
    vmem_lock();
    bool is_done = tcl_is_filtered() || vmem_has_no_program_thread();
    vmem_unlock();
    return is_done;
}

/* The thread that moves has no descriptors of the program. If it were the last thread, libc would
 * run the program's exit handlers in it. So it ends before, and this thread is the last. */
static void *guard(void *nothing) {
    pthread_t mover;
    if (vmem_start_joinable(&mover, serve, NULL)) {
        vmem_end_thread();
        return nothing;
    }
    while (!is_guard_done())
        nanosleep(&(struct timespec){POLL_S, 0}, NULL);
    atomic_store(&must_end, true);
    syscall(SYS_futex, &tcl_control()->moves_asked, FUTEX_WAKE, 1, NULL, NULL, 0);
    pthread_join(mover, NULL);
    vmem_end_thread();
    return nothing;
}

static void start_mover(void) {
    atomic_store(&must_end, false);
    vmem_start_thread(guard, NULL);
}

void vmem_serve(void) {
    if (!vmem_private_can_move())
        return;
    pending_process = syscall(SYS_getpid);
    if (vmem_threads() == 1)
        atomic_store(&tcl_vmem_start_pending, true);
    else
        start_mover();
}

void tcl_vmem_start_if_large(void) {
    int saved = errno;
    size_t bytes = tcl_heap_open_bytes() + tcl_small_bytes();
    /* A child of vfork shares this memory, and its threads would end with it. */
    if (bytes >= HEAP_BYTES_MIN && !tcl_is_filtered() && syscall(SYS_getpid) == pending_process &&
        atomic_exchange(&tcl_vmem_start_pending, false))
        start_mover();
    errno = saved;
}

bool tcl_vmem_is_mover(void) {
    return atomic_load(&is_running);
}

void vmem_forget_server(void) {
    atomic_store(&is_running, false);
    atomic_store(&tcl_vmem_start_pending, false);
}
