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
#include <pthread.h>
#include <stdio.h>

TCL_EXPORT int malloc_trim(size_t pad) {
    (void)pad;
    struct heap_figures before = tcl_heap_figures();
    tcl_small_trim();
    tcl_cache_flush();
    tcl_pages_purge(true);
    return tcl_heap_figures().dirty < before.dirty;
}

/* In use is what objects have: of blocks whole slots, which are up to a quarter larger than what
 * was asked for, and of runs whole OS pages. glibc counts its chunks likewise, and those in its
 * threads' caches as in use; what is in ours is free here. */
TCL_EXPORT struct mallinfo2 mallinfo2(void) {
    struct heap_figures runs = tcl_heap_figures();
    size_t blocks = tcl_small_bytes(), slots = tcl_small_used();
    size_t all = blocks + (runs.open << PAGE_SHIFT);
    size_t used = (slots < blocks ? slots : blocks) + (runs.live << PAGE_SHIFT);
    return (struct mallinfo2){.arena = all,
                              .ordblks = runs.free_runs,
                              .uordblks = used,
                              .fordblks = all - used,
                              .keepcost = runs.dirty << PAGE_SHIFT};
}

static int clamp(size_t n) {
    return n > INT_MAX ? INT_MAX : (int)n;
}

/* Its figures are ints: clamped, where glibc's overflow. */
TCL_EXPORT struct mallinfo mallinfo(void) {
    struct mallinfo2 all = mallinfo2();
    return (struct mallinfo){.arena = clamp(all.arena),
                             .ordblks = clamp(all.ordblks),
                             .uordblks = clamp(all.uordblks),
                             .fordblks = clamp(all.fordblks),
                             .keepcost = clamp(all.keepcost)};
}

/* glibc's tunables have no counterpart here. 1 means success: programs treat 0 as an error. */
TCL_EXPORT int mallopt(int parameter, int value) {
    (void)parameter, (void)value;
    return 1;
}

/* As glibc prints them, with the one heap as arena 0, and, as there, no cancellation point. */
TCL_EXPORT void malloc_stats(void) {
    struct mallinfo2 all = mallinfo2();
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    fprintf(stderr,
            "Arena 0:\nsystem bytes     = %10zu\nin use bytes     = %10zu\n"
            "Total (incl. mmap):\nsystem bytes     = %10zu\nin use bytes     = %10zu\n"
            "max mmap regions = %10zu\nmax mmap bytes   = %10zu\n",
            all.arena, all.uordblks, all.arena, all.uordblks, all.hblks, all.hblkhd);
    pthread_setcancelstate(state, NULL);
}

/* The elements of glibc's report; there are no fast bins, and no mmap for single objects. */
TCL_EXPORT int malloc_info(int options, FILE *to) {
    if (options != 0)
        return EINVAL;
    struct mallinfo2 all = mallinfo2();
#define TOTALS                                                                                     \
    "<total type=\"fast\" count=\"0\" size=\"0\"/>\n"                                              \
    "<total type=\"rest\" count=\"%zu\" size=\"%zu\"/>\n"
#define SYSTEM                                                                                     \
    "<system type=\"current\" size=\"%zu\"/>\n<system type=\"max\" size=\"%zu\"/>\n"               \
    "<aspace type=\"total\" size=\"%zu\"/>\n<aspace type=\"mprotect\" size=\"%zu\"/>\n"
    int wrote = fprintf(to,
                        "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n</sizes>\n" TOTALS SYSTEM
                        "</heap>\n" TOTALS "<total type=\"mmap\" count=\"0\" size=\"0\"/>\n" SYSTEM
                        "</malloc>\n",
                        all.ordblks, all.fordblks, all.arena, all.arena, all.arena, all.arena,
                        all.ordblks, all.fordblks, all.arena, all.arena, all.arena, all.arena);
    return wrote < 0 ? -1 : 0;
}
