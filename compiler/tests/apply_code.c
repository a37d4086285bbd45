/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * apply_code.c: births and loops in C that a plan is applied to; apply.c calls them.
 */
#include "apply.h"
#include <stdlib.h>

#define NOINLINE __attribute__((noinline))

NOINLINE void *born_hot(size_t bytes) {
    return malloc(bytes); // HOT born_hot
}

NOINLINE void *born_cold(size_t bytes) {
    void *p = calloc(2, bytes / 2); // COLD born_cold
    return p;
}

NOINLINE void *born_plain(size_t bytes) {
    return malloc(bytes);
}

static inline void *wrapped(size_t bytes) {
    return malloc(bytes);
}

NOINLINE void *born_wrapped_hot(size_t bytes) {
    return wrapped(bytes); // HOT born_wrapped_hot
}

NOINLINE void *born_wrapped_cold(size_t bytes) {
    return wrapped(bytes); // COLD born_wrapped_cold
}

NOINLINE long planned(const long *numbers, size_t count) {
    long sum = 0;
    for (size_t i = 0; i < count; i++) // PHASE planned
        sum = sum * 3 + numbers[i];
    return sum;
}

NOINLINE long unplanned(const long *numbers, size_t count) {
    long sum = 0;
    for (size_t i = 0; i < count; i++)
        sum = sum * 5 + numbers[i];
    return sum;
}

NOINLINE long steps(const long *numbers, size_t count) {
    long sum = 0;
    for (long step = 0; step < numbers[3]; step++) { // PHASE steps
        for (size_t i = 0; i < count; i++)           // PHASE steps
            sum = sum * 7 + numbers[i];
        sum += unplanned(numbers, count);
    }
    return sum;
}
