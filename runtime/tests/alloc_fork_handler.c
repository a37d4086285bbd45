/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_fork_handler.c: a signal handler forks in the middle of allocations and forks of its only
 * thread.
 * In: the preloaded library. Out: one line, 0 when no fork hung and every child went on allocating.
 * Knows nothing of the allocator's locks.
 *
 * POSIX allows fork in signal handlers (up to its issue of 2024), and glibc's heap bears it in
 * processes with one thread.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKS 300

static volatile sig_atomic_t forks, failed, is_child;

/* Once, after some CPU time of this program: between two forks it gets on, however long they take.
 */
static void arm(void) {
    setitimer(ITIMER_PROF, &(struct itimerval){{0, 0}, {0, 1000}}, NULL);
}

static void handle(int signal) {
    (void)signal;
    if (is_child)
        return;
    pid_t child = fork();
    if (child == 0) {
        is_child = 1; /* and goes on where the signal came */
        return;
    }
    int status = 1;
    failed |= child < 0 || waitpid(child, &status, 0) != child || status;
    if (++forks < FORKS)
        arm();
}

static void churn(unsigned *seed) {
    static char *p[40];
    *seed = *seed * 1664525 + 1013904223;
    unsigned slot = (*seed >> 8) % 40;
    size_t bytes = *seed >> 28 ? (*seed >> 10) % 3000 : (*seed >> 10) % 900000;
    free(p[slot]);
    p[slot] = malloc(bytes + 1);
    if (!p[slot])
        _exit(2);
    memset(p[slot], 1, bytes + 1);
}

/* The handler may interrupt this fork, and fork in it: both children end here or there. */
static void fork_here(void) {
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    int status = 1;
    if (!is_child)
        failed |= child < 0 || waitpid(child, &status, 0) != child || status;
}

int main(void) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    unsigned seed = 1;
    sigaction(SIGPROF, &action, NULL);
    arm(); /* children inherit no timer */
    while (forks < FORKS && !failed && !is_child) {
        churn(&seed);
        if (seed >> 24 == 0)
            fork_here();
    }
    if (is_child) {
        for (int i = 0; i < 10; i++)
            churn(&seed);
        _exit(0);
    }
    printf("alloc_fork_handler: %s\n", failed ? "a child failed" : "ok");
    return failed;
}
