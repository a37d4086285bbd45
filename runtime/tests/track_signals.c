/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_signals.c: a timer's handler maps and unmaps while the program does the same, also on a
 * small signal stack: no deadlock, no crash, and every loss is counted.
 */
#include "hazard.h"
#include <sys/time.h>

static volatile int handled;

static void handler(int signal) {
    (void)signal;
    int saved = errno;
    void *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED)
        munmap(p, 65536);
    handled++;
    errno = saved;
}

static int hosted(void) {
    static char stack[16 << 10];
    stack_t alternative = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    struct itimerval tick = {{0, 500}, {0, 500}};
    sigaltstack(&alternative, NULL);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &tick, NULL);
    while (handled < 300) {
        void *p = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(p != MAP_FAILED, "mmap");
        churn(50, (unsigned)handled);
        CHECK(!munmap(p, 1 << 20), "munmap");
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted();
    (void)argv;
    struct daemon d = {0};
    host(&d, "hosted");
    struct session *s = d.session[0];
    printf("track_signals: %lu records, %lu lost and counted\n", s->records,
           s->lost + s->without_ring);
    close_daemon(&d);
    return 0;
}
