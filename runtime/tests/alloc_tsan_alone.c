/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_tsan_alone.c: the run layer under ThreadSanitizer.
 * In: nothing. Out: one line, 0 when no race was seen. Knows nothing of malloc.
 */
// build: -fsanitize=thread
#define STEPS 4000 /* a run costs ten times as much here */
#include "alloc_heap.h"
