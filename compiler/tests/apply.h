/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * apply.h: between the harness apply.c and the code that a plan is applied to. The plan has the
 * lines that end with a remark: `HOT`, `COLD`, `PHASE`.
 */
#ifndef TIERCEL_TESTS_APPLY_H
#define TIERCEL_TESTS_APPLY_H

#include <stddef.h>

#if defined(__cplusplus)
extern "C" {
#endif

/* apply_code.c */
void *born_hot(size_t bytes), *born_cold(size_t bytes), *born_plain(size_t bytes);
/* Through a wrapper that is inlined where the compiler optimises. */
void *born_wrapped_hot(size_t bytes), *born_wrapped_cold(size_t bytes);
long planned(const long *numbers, size_t count), unplanned(const long *numbers, size_t count);
long steps(const long *numbers, size_t count);

/* apply_code.cc */
void *new_hot(void), *new_cold(void), *new_beside_cleanup(int *ends);
/* Throws out of a marked loop, and catches it. */
int thrown(int count);
void unnew(void *node);

#if defined(__cplusplus)
}
#endif

#endif
