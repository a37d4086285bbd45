/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * team.h: threads that do the same work on different parts of the data.
 * In: a number of threads, a function, pin=1. Out: each thread's part, a barrier, sums in a fixed
 * order.
 * Knows nothing of the work. With one thread, no thread is started.
 */
#ifndef TEAM_H
#define TEAM_H

#include "workload.h"
#include <pthread.h>
#include <sched.h>

#define THREADS_MAX 64 /* chosen, not measured */

struct team {
    uint64_t of;
    void *job;
    pthread_barrier_t barrier;
    double parts[THREADS_MAX];
};

/* One thread of a team: number `me` of `of`. */
struct member {
    uint64_t me;
    uint64_t of;
    void *job;
    struct team *team;
    void (*work)(struct member *);
};

/* From `begin` to before `end`. */
struct range {
    uint64_t begin;
    uint64_t end;
};

static inline struct range my_share(const struct member *member, uint64_t count) {
    return (struct range){count * member->me / member->of, count * (member->me + 1) / member->of};
}

/* A barrier. */
static inline void wait_for_all(struct member *member) {
    if (member->of > 1) {
        pthread_barrier_wait(&member->team->barrier);
    }
}

/* The sum of all members' parts, in the order of their numbers, so that it is the same in every
 * run. */
static inline double sum_of_all(struct member *member, double part) {
    member->team->parts[member->me] = part;
    wait_for_all(member);
    double sum = 0.0;
    for (uint64_t i = 0; i < member->of; i++) {
        sum += member->team->parts[i];
    }
    wait_for_all(member);
    return sum;
}

/* With pin=1, member n stays on the n-th of the CPUs that the program may use, in turns. A machine
 * that refuses leaves it where it is. */
static inline void pin_member(uint64_t me) {
    static cpu_set_t usable;
    static _Atomic bool is_known;
    if (!common_options[PIN].value) {
        return;
    }
    if (!atomic_load(&is_known)) {
        if (sched_getaffinity(0, sizeof usable, &usable) != 0) {
            return;
        }
        atomic_store(&is_known, true);
    }
    uint64_t nth = me % (uint64_t)CPU_COUNT(&usable);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &usable) && nth-- == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
    }
}

static inline void *member_main(void *argument) {
    struct member *member = argument;
    pin_member(member->me);
    member->work(member);
    return NULL;
}

/* Runs `work` in `threads` threads, of which the caller is one; returns when all are done. */
static inline void run_team(uint64_t threads, void (*work)(struct member *), void *job) {
    struct team team = {.of = threads, .job = job};
    struct member members[THREADS_MAX];
    pthread_t handles[THREADS_MAX];
    pin_member(0);
    if (pthread_barrier_init(&team.barrier, NULL, (unsigned)threads) != 0) {
        fprintf(stderr, "cannot make a team of %" PRIu64 "\n", threads);
        exit(3);
    }
    for (uint64_t i = 0; i < threads; i++) {
        members[i] = (struct member){i, threads, job, &team, work};
        if (i > 0 && pthread_create(&handles[i], NULL, member_main, &members[i]) != 0) {
            fprintf(stderr, "cannot start thread %" PRIu64 "\n", i);
            exit(3);
        }
    }
    work(&members[0]);
    for (uint64_t i = 1; i < threads; i++) {
        pthread_join(handles[i], NULL);
    }
    pthread_barrier_destroy(&team.barrier);
}

#endif
