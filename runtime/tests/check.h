/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * check.h: CHECK, for parents and forked children.
 * In: a condition and, optionally, a format with its values. Out: nothing, or a line on stderr and
 * exit status 1. Knows nothing of what is tested.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* A test that takes longer hangs, whatever else the machine does. Chosen: hundreds of times what
 * any takes on a quiet one. */
#define HANG_S 300

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %m", __FILE__, __LINE__, #condition);                      \
            fprintf(stderr, "; " __VA_ARGS__);                                                     \
            fprintf(stderr, "\n");                                                                 \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* Forks a child that ends at once, and waits for its end. */
static inline void fork_once(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, NULL, 0) == child);
}

#endif
