/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * clock.h: the time that a record carries.
 * In: the clock that the control page names. Out: an instant of it. Knows nothing of records.
 */
#ifndef TCL_CLOCK_H
#define TCL_CLOCK_H

#include "../base.h"
#include <stdatomic.h>
#include <time.h>

/* `time` has as many bits as the clock; a record keeps TCL_TIME_BITS. 0: not known, and the daemon
 * takes the record for as old as it is when it is read. */
struct tcl_instant {
    uint64_t time;
    uint8_t flag; /* TCL_TICKS or 0 */
};

/* The program has forbidden itself to read the counter (prctl, PR_SET_TSC or strict seccomp), and
 * with it clock_gettime, which reads it: either ends the program. (track/seccomp.c) */
TCL_HIDDEN extern _Atomic bool tcl_clock_is_forbidden;

static inline uint64_t tcl_counter(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
}

static inline struct tcl_instant tcl_clock_read(const uint32_t *clock) {
    if (tcl_unlikely(atomic_load_explicit(&tcl_clock_is_forbidden, memory_order_relaxed)))
        return (struct tcl_instant){0};
    if (tcl_likely(__atomic_load_n(clock, __ATOMIC_RELAXED) == TCL_CLOCK_COUNTER))
        return (struct tcl_instant){tcl_counter(), TCL_TICKS};
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (struct tcl_instant){(uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec, 0};
}

#endif
