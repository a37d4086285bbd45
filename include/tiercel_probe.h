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

#if defined(__cplusplus)
extern "C" {
#endif
/* Of the runtime: sets hooks and limit of a module, unless that is of another version. */
void tiercel_probe_join(const struct tiercel_probe_module *module);
/* Of the runtime: the module is being unloaded. */
void tiercel_probe_leave(const struct tiercel_probe_module *module);
#if defined(__cplusplus)
}
#endif

#endif
