/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * tiercel_probe.h: how code that `tiercel cc` compiled finds the runtime of the process it is in.
 * In: nothing. Out: what compiler/pass, compiler/probe and the runtime agree on. Knows nothing of
 * caches or profiles.
 *
 *   compiled code --hash below limit--> libtiercel_probe.a --hook--> libtiercel.so, if loaded
 *                     <--limit, hook-- tiercel_probe_join <--once a module, as it is loaded--
 *
 * Sampled are lines of 64 bytes, not moments: a line is sampled for ever or never. An address's
 * hash is (address & -64) * TIERCEL_PROBE_HASH modulo 2^32, and it is sampled when that is below
 * the limit: 2^32 / 32 samples a 32nd of all lines, 0 none, 2^32 - 1 all, as hashes are multiples
 * of 64.
 */
#ifndef TIERCEL_PROBE_H
#define TIERCEL_PROBE_H

#include <stddef.h>
#include <stdint.h>

/* 2^32 divided by the golden ratio, odd: Knuth, The Art of Computer Programming 3, 6.4. */
#define TIERCEL_PROBE_HASH 0x9E3779B1u

/* `what` of an access: flags, its pattern, and its bytes from this bit on. */
#define TIERCEL_PROBE_WRITES 1u  /* its first access writes: a miss is one of a store */
#define TIERCEL_PROBE_DIRTIES 2u /* one of its accesses writes */
#define TIERCEL_PROBE_PATTERN_SHIFT 2
#define TIERCEL_PROBE_SPAN_SHIFT 8

/* In what order an access goes through memory, as far as the code shows: two bits of `what`. The
 * numbers are those of Pattern in crates/wire. */
enum tiercel_probe_pattern {
    TIERCEL_PROBE_RANDOM = 0, /* none that the code shows */
    TIERCEL_PROBE_SEQUENTIAL, /* line by line */
    TIERCEL_PROBE_STRIDED,    /* by more than a line, the same each time */
    TIERCEL_PROBE_CHASED      /* to where what was loaded before says */
};

/* One more with each change of this file that either side can notice. */
#define TIERCEL_PROBE_VERSION 2u

/* Of a small object's birth, beside its temperature (enum tiercel_temperature). */
#define TIERCEL_PROBE_ZEROED 0x100u

/* What a module of compiled code brings: an executable or a shared library. */
struct tiercel_probe_module {
    uint32_t version;
    uint32_t pad;
    uint32_t *limit;
    /* Called with accesses to sampled lines; `what` has their span, of at most two lines, `from` is
     * where the compiled code goes on. */
    void (**access)(uintptr_t addr, uint32_t what, uintptr_t from);
    /* Called with all ranges while the limit is not 0. */
    void (**range)(uintptr_t addr, uintptr_t bytes, uint32_t what, uintptr_t from);
};

/* A loop that compiled code marks, one for all loops of this name in a module. Zero at first, but
 * for the first two; the main thread writes the rest. */
struct tiercel_probe_mark {
    const char *name;    /* of its phase: function:line */
    uint32_t is_planned; /* its phase is entered at once, however short it is */
    uint32_t is_off;     /* it never is */
    uint32_t phase;      /* 1 + its number; 0: not known yet */
    uint32_t outer;      /* 1 + the number of the phase that it was entered from */
    uint64_t since_ms;
    uint32_t entries, total_ms;
};
/* What entering a mark returns where it changed nothing. */
#define TIERCEL_PROBE_NOT_ENTERED ((struct tiercel_probe_mark *)1)

#if defined(__cplusplus)
extern "C" {
#endif
/* Of the runtime: sets hooks and limit of a module, unless that is of another version. */
void tiercel_probe_join(const struct tiercel_probe_module *module);
/* Of the runtime: the module is being unloaded. */
void tiercel_probe_leave(const struct tiercel_probe_module *module);
/* Of the runtime: the program enters a marked loop; what to pass when it leaves it: the mark that
 * it is in until then, NULL for none. */
struct tiercel_probe_mark *tiercel_probe_enter(struct tiercel_probe_mark *mark);
void tiercel_probe_exit(struct tiercel_probe_mark *mark, struct tiercel_probe_mark *before);
/* Of the runtime: a small object among others of its temperature, to be freed by `release`. NULL:
 * there is none, as the object is not small, `release` is not the runtime's, or no daemon is
 * there; then it is malloc's. */
void *tiercel_probe_small(size_t bytes, uint32_t what, void (*release)(void *));
#if defined(__cplusplus)
}
#endif

#endif
