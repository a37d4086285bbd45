/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * malloc_info.c: malloc_trim, mallinfo and the other functions of malloc.h that report on the heap.
 * In: calls of the hosted program. Out: figures of the run layer and the arenas of small slots.
 * Knows nothing of how they are computed.
 */
#include "heap.h"
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>

TCL_EXPORT int malloc_trim(size_t pad) {
    (void)pad;
    struct heap_figures before = tcl_heap_figures();
    tcl_small_trim();
    tcl_cache_flush();
    tcl_pages_purge(true);
    return tcl_heap_figures().dirty < before.dirty;
}

TCL_EXPORT struct mallinfo2 mallinfo2(void) {
    struct heap_figures runs = tcl_heap_figures();
    size_t small = tcl_small_top() << PAGE_SHIFT;
    return (struct mallinfo2){.arena = small + (runs.open << PAGE_SHIFT),
                              .ordblks = 1,
                              .uordblks = small + (runs.live << PAGE_SHIFT),
                              .fordblks = (runs.dirty + runs.clean) << PAGE_SHIFT,
                              .keepcost = runs.dirty << PAGE_SHIFT};
}

static int clamp(size_t n) {
    return n > INT_MAX ? INT_MAX : (int)n;
}

/* Its figures are ints: clamped, where glibc's overflow. */
TCL_EXPORT struct mallinfo mallinfo(void) {
    struct mallinfo2 all = mallinfo2();
    return (struct mallinfo){.arena = clamp(all.arena),
                             .ordblks = 1,
                             .uordblks = clamp(all.uordblks),
                             .fordblks = clamp(all.fordblks),
                             .keepcost = clamp(all.keepcost)};
}

/* glibc's tunables have no counterpart here. 1 means success: programs treat 0 as an error. */
TCL_EXPORT int mallopt(int parameter, int value) {
    (void)parameter, (void)value;
    return 1;
}

TCL_EXPORT void malloc_stats(void) {
    struct mallinfo2 all = mallinfo2();
    fprintf(stderr, "Total (tiercel):\nsystem bytes     = %10zu\nin use bytes     = %10zu\n",
            all.arena, all.uordblks);
}

TCL_EXPORT int malloc_info(int options, FILE *to) {
    if (options != 0)
        return EINVAL;
    struct mallinfo2 all = mallinfo2();
    int wrote = fprintf(to,
                        "<malloc version=\"1\">\n<heap nr=\"0\">\n"
                        "<system type=\"current\" size=\"%zu\"/>\n"
                        "<total type=\"rest\" count=\"1\" size=\"%zu\"/>\n</heap>\n</malloc>\n",
                        all.arena, all.fordblks);
    return wrote < 0 ? -1 : 0;
}
