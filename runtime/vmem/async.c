/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * async.c: migrations on a thread of the runtime's own.
 * In: tickets asked for. Out: tickets kept. Knows nothing of how a migration is done.
 *
 *   asked   kept                 a ticket is a number that only grows; its slot is ticket % 64
 *     |  7    6   5   4  | ...
 *
 * The thread begins with the first ticket, and has all signals blocked. A child of a fork has none,
 * and begins its own.
 */
#define TIERCEL_RUNTIME
#include "../../include/tiercel.h"
#include "region.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>

#define TICKETS_MAX 64

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
static long last_asked, last_kept;
static bool is_running;

static void *keep_tickets(void *nothing) {
    pthread_mutex_lock(&lock);
    for (;;) {
        while (last_kept == last_asked)
            pthread_cond_wait(&changed, &lock);
        struct ticket *ticket = &tickets[++last_kept % TICKETS_MAX];
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

/* What was asked for and not begun is not done here; its tickets are the parent's. */
static void after_fork_child(void) {
    memset(tickets, 0, sizeof(tickets));
    last_kept = last_asked;
    is_running = false;
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&changed, NULL);
}

/* Under the lock. */
static int start(void) {
    static bool is_known_to_forks;
    if (is_running)
        return 0;
    if (!is_known_to_forks)
        pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    is_known_to_forks = true;
    int error = vmem_begin_thread(keep_tickets, NULL);
    is_running = !error;
    return error;
}

TCL_EXPORT long tiercel_vregion_start(void *addr, size_t bytes, int node) {
    pthread_mutex_lock(&lock);
    struct ticket *ticket = &tickets[(last_asked + 1) % TICKETS_MAX];
    int error = ticket->number ? EAGAIN : start();
    long number = error ? -1 : ++last_asked;
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
