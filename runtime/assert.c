/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * assert.c: failed assertions. In: the condition and its place in the source. Out: one line on
 * stderr, and an abort. Knows nothing of what was asserted.
 */
#include "base.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Compares with a mutex that this thread locks, and not with gettid, because the C library caches
 * the thread's number, and a child of a raw clone keeps its parent's. Twice, because a signal
 * handler may fork in between, and the child has another number. */
bool tcl_is_held(const pthread_mutex_t *mutex) {
    static __thread pthread_mutex_t mine = PTHREAD_MUTEX_INITIALIZER;
    if (tcl_in_fork)
        return true;
    bool is_held = false;
    for (int i = 0; i < 2 && !is_held; i++) {
        pthread_mutex_lock(&mine);
        is_held = mutex->__data.__owner == mine.__data.__owner;
        pthread_mutex_unlock(&mine);
    }
    return is_held;
}

void tcl_assert_failed(const char *what, const char *file, unsigned line) {
    char text[256];
    const char *name = strrchr(file, '/');
    snprintf(text, sizeof(text), "assertion failed: %s (%s:%u)", what, name ? name + 1 : file,
             line);
    tcl_warn(text);
    abort();
}
