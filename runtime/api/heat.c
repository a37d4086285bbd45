/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * heat.c: small objects that the program, or its compiler, states to be hot or cold.
 * In: sizes, temperatures. Out: slots in blocks that have objects of one temperature alone. Knows
 * nothing of how the compiler found them.
 *
 *   tiercel_malloc_class       C, by hand
 *   tiercel_probe_small        code that `tiercel cc` compiled with a plan
 *   operator new(n, hot_cold)  C++ that LLVM compiled by a profile (-optimize-hot-cold-new)
 *
 * Objects from 4 KiB on have OS pages of their own and are placed by their sites.
 */
#define TIERCEL_RUNTIME
#include "../../include/tiercel.h"
#include "../../include/tiercel_probe.h"
#include "../alloc/heap.h"
#include "../track/session.h"
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

_Static_assert((int)TIERCEL_HOT == (int)TCL_HOT && (int)TIERCEL_COLD == (int)TCL_COLD,
               "tiercel.h and track.h number temperatures alike");

/* Hints of LLVM's and tcmalloc's __hot_cold_t: 0 is the coldest, 255 the hottest, 128 is neither
 * (LLVM 19, -notcold-new-hint-value). */
#define HINT_NEUTRAL 128

#define CALLER ((struct caller){__builtin_return_address(0), __builtin_dwarf_cfa()})

/* NULL: it is not small or of no temperature, the process is not attached, or memory is short. */
static void *slot_of(size_t bytes, bool zero, unsigned heat) {
    if (bytes >= SMALL_LIMIT || (heat != TCL_HOT && heat != TCL_COLD) || !tcl_tracking())
        return NULL;
    int saved = errno;
    tcl_session_want();
    void *p = tcl_attached() ? tcl_small_of_heat(bytes, zero, (enum tcl_temperature)heat) : NULL;
    errno = saved;
    return p;
}

TCL_EXPORT void *tiercel_probe_small(size_t bytes, uint32_t what, void (*release)(void *)) {
    if (release != tcl_own_free && release != tcl_own_delete)
        return NULL;
    return slot_of(bytes, what & TIERCEL_PROBE_ZEROED, what & ~TIERCEL_PROBE_ZEROED);
}

TCL_EXPORT void *tiercel_malloc_class(size_t bytes, enum tiercel_temperature temperature) {
    if (tcl_is_our_malloc()) {
        void *p = slot_of(bytes, false, (unsigned)temperature);
        return p ? p : tcl_allocate(bytes, 16, CALLER);
    }
    void *(*their_malloc)(size_t);
    void *found = dlsym(RTLD_DEFAULT, "malloc");
    memcpy(&their_malloc, &found, sizeof(found));
    return their_malloc(bytes);
}

/* ---- C++ ------------------------------------------------------------------------------------- */

extern void _ZdlPv(void *p);

/* A program with its own operator delete must get its memory from its own operator new. */
static unsigned heat_of(uint8_t hint) {
    void (*release)(void *) = _ZdlPv;
    __asm__("" : "+r"(release)); /* it may be another's, whatever the compiler assumes */
    if (release != tcl_own_delete)
        return TCL_LUKEWARM;
    return hint == HINT_NEUTRAL ? TCL_LUKEWARM : hint < HINT_NEUTRAL ? TCL_COLD : TCL_HOT;
}

/* Where there is no slot, the operator without a hint has the memory, or throws. */
#define HINTED(name)                                                                               \
    extern void *name(size_t bytes);                                                               \
    TCL_EXPORT void *name##12__hot_cold_t(size_t bytes, uint8_t hint);                             \
    TCL_EXPORT void *name##12__hot_cold_t(size_t bytes, uint8_t hint) {                            \
        void *p = slot_of(bytes, false, heat_of(hint));                                            \
        return p ? p : name(bytes);                                                                \
    }
#define HINTED_NOTHROW(name)                                                                       \
    extern void *name(size_t bytes, const void *tag);                                              \
    TCL_EXPORT void *name##12__hot_cold_t(size_t bytes, const void *tag, uint8_t hint);            \
    TCL_EXPORT void *name##12__hot_cold_t(size_t bytes, const void *tag, uint8_t hint) {           \
        void *p = slot_of(bytes, false, heat_of(hint));                                            \
        return p ? p : name(bytes, tag);                                                           \
    }
/* Their alignments exceed 16: they are placed by their sites. */
#define HINTED_ALIGNED(name)                                                                       \
    extern void *name(size_t bytes, size_t align);                                                 \
    TCL_EXPORT void *name##12__hot_cold_t(size_t bytes, size_t align, uint8_t hint);               \
    TCL_EXPORT void *name##12__hot_cold_t(size_t bytes, size_t align, uint8_t hint) {              \
        (void)hint;                                                                                \
        return name(bytes, align);                                                                 \
    }
#define HINTED_ALIGNED_NOTHROW(name)                                                               \
    extern void *name(size_t bytes, size_t align, const void *tag);                                \
    TCL_EXPORT void *name##12__hot_cold_t(size_t bytes, size_t align, const void *tag,             \
                                          uint8_t hint);                                           \
    TCL_EXPORT void *name##12__hot_cold_t(size_t bytes, size_t align, const void *tag,             \
                                          uint8_t hint) {                                          \
        (void)hint;                                                                                \
        return name(bytes, align, tag);                                                            \
    }

HINTED(_Znwm)
HINTED(_Znam)
HINTED_NOTHROW(_ZnwmRKSt9nothrow_t)
HINTED_NOTHROW(_ZnamRKSt9nothrow_t)
HINTED_ALIGNED(_ZnwmSt11align_val_t)
HINTED_ALIGNED(_ZnamSt11align_val_t)
HINTED_ALIGNED_NOTHROW(_ZnwmSt11align_val_tRKSt9nothrow_t)
HINTED_ALIGNED_NOTHROW(_ZnamSt11align_val_tRKSt9nothrow_t)
