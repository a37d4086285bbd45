/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * apply.c: of libtiercel_probe.a, what code calls that has marks, or temperatures of small objects.
 * In: loops that begin and end; births. Out: calls of the runtime. Knows nothing of plans; without
 * the runtime loops are no phases, and memory is malloc's.
 */
#include "../../include/tiercel_probe.h"
#include <stdlib.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define FROM_CODE __attribute__((visibility("hidden"), preserve_most))

/* Where there is no runtime, these are 0. */
__attribute__((weak)) struct tiercel_probe_mark *tiercel_probe_enter(struct tiercel_probe_mark *);
__attribute__((weak)) void tiercel_probe_exit(struct tiercel_probe_mark *,
                                              struct tiercel_probe_mark *);
__attribute__((weak)) void *tiercel_probe_small(size_t, uint32_t, void (*)(void *));
/* C++'s operator delete, where the program has one. */
__attribute__((weak)) void _ZdlPv(void *);

FROM_CODE struct tiercel_probe_mark *tiercel_mark_enter(struct tiercel_probe_mark *mark) {
    if (mark->is_off || !tiercel_probe_enter)
        return TIERCEL_PROBE_NOT_ENTERED;
    return tiercel_probe_enter(mark);
}

FROM_CODE void tiercel_mark_exit(struct tiercel_probe_mark *mark,
                                 struct tiercel_probe_mark *before) {
    if (before != TIERCEL_PROBE_NOT_ENTERED)
        tiercel_probe_exit(mark, before);
}

/* For malloc and calloc: NULL where the call itself is to be made. */
HIDDEN void *tiercel_birth_c(size_t count, size_t each, uint32_t what) {
    size_t bytes;
    if (!tiercel_probe_small || __builtin_mul_overflow(count, each, &bytes))
        return NULL;
    return tiercel_probe_small(bytes, what, free);
}

/* For C++'s operators new. */
HIDDEN void *tiercel_birth_cxx(size_t count, size_t each, uint32_t what) {
    size_t bytes;
    if (!tiercel_probe_small || __builtin_mul_overflow(count, each, &bytes))
        return NULL;
    return tiercel_probe_small(bytes, what, _ZdlPv);
}
