/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_asan_alone.c: the run layer under AddressSanitizer and UndefinedBehaviorSanitizer.
 * In: nothing. Out: one line, 0 when nothing was seen. Knows nothing of malloc.
 */
// build: -fsanitize=address,undefined -fno-sanitize-recover=all
#include "alloc_heap.h"
