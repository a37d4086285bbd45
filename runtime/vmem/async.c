/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * async.c: migrations on a thread of the runtime.
 * In: migrations to start. Out: tickets, and their results. Knows nothing of how vpages move.
 *
 *   last_issued   last_begun          ticket numbers only grow; the slot of one is number % 64
 *       |  7    6    5 |  4  ...
 *
 * The first ticket starts the thread, which has all signals blocked. A child of a fork does not
 * have it, and starts its own.
 */
#define TIERCEL_RUNTIME
#include "../../include/tiercel.h"
#include "region.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>

#define TICKETS_MAX 64 /* as tiercel.h states. Chosen, not measured */

struct ticket {
    long number; /* 0: an empty slot */
    void *addr;
    size_t bytes;
    int node;
    bool is_done;
    int error;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct ticket tickets[TICKETS_MAX];
static long last_issued, last_begun;
static bool is_running;

static void *run_tickets(void *nothing) {
    pthread_mutex_lock(&lock);
    for (;;) {
        while (last_begun == last_issued)
            pthread_cond_wait(&changed, &lock);
        struct ticket *ticket = &tickets[++last_begun % TICKETS_MAX];
        tcl_assert_debug(ticket->number == last_begun && !ticket->is_done);
        struct ticket todo = *ticket;
        pthread_mutex_unlock(&lock);
        int failed = tiercel_vregion_migrate(todo.addr, todo.bytes, todo.node), error = errno;
        pthread_mutex_lock(&lock);
        ticket->is_done = true;
        ticket->error = failed ? error : 0;
        pthread_cond_broadcast(&changed);
    }
    return nothing;
}

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork_parent(void) {
    pthread_mutex_unlock(&lock);
}

/* The parent's tickets are not the child's. */
static void after_fork_child(void) {
    memset(tickets, 0, sizeof(tickets));
    last_begun = last_issued;
    is_running = false;
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&changed, NULL);
}

/* Under the lock. */
static int start(void) {
    static bool has_fork_handlers;
    tcl_assert_debug(tcl_is_held(&lock));
    if (is_running)
        return 0;
    if (!has_fork_handlers)
        pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    has_fork_handlers = true;
    int error = vmem_start_thread(run_tickets, NULL);
    is_running = !error;
    return error;
}

TCL_EXPORT long tiercel_vregion_start(void *addr, size_t bytes, int node) {
    pthread_mutex_lock(&lock);
    struct ticket *ticket = &tickets[(last_issued + 1) % TICKETS_MAX];
    int error = ticket->number ? EAGAIN : start();
    long number = error ? -1 : ++last_issued;
    if (!error) {
        *ticket = (struct ticket){.number = number, .addr = addr, .bytes = bytes, .node = node};
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    if (error)
        errno = error;
    return number;
}

TCL_EXPORT int tiercel_vregion_await(long number) {
    pthread_mutex_lock(&lock);
    struct ticket *ticket = number > 0 ? &tickets[number % TICKETS_MAX] : NULL;
    int error = EINVAL;
    while (ticket && ticket->number == number && !ticket->is_done)
        pthread_cond_wait(&changed, &lock);
    if (ticket && ticket->number == number) {
        error = ticket->error;
        *ticket = (struct ticket){0};
    }
    pthread_mutex_unlock(&lock);
    if (error)
        errno = error;
    return error ? -1 : 0;
}
