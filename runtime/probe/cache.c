/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * cache.c: one set-associative write-back cache with pseudo-LRU replacement, as Cache of
 * crates/memsim/src/cache.rs: the same lines hit, miss and leave.
 * In: line numbers. Out: hit or miss, what had to leave. Knows nothing of levels or threads.
 *
 * Bit-PLRU: a use sets the way's bit; when all are set, all others are cleared; the victim is the
 * first way whose bit is clear.
 */
#include "probe.h"

/* The bits of use are below: 32 ways at most, as MAX_WAYS of crates/memsim. */
#define DIRTY_SHIFT 32

static inline uint64_t *cache_set(const struct tcl_cache *cache, uint64_t line) {
    return cache->sets + tcl_cache_set(cache, line) * (1 + cache->ways);
}

/* The way that has the line, or the number of ways. */
static inline uint32_t way_of(const struct tcl_cache *cache, const uint64_t *set, uint64_t line) {
    uint32_t way = 0;
    while (way < cache->ways && set[1 + way] != line + 1)
        way++;
    return way;
}

static inline void use(const struct tcl_cache *cache, uint64_t *set, uint32_t way, bool writes) {
    uint64_t all = UINT32_MAX >> (32 - cache->ways);
    uint64_t state = *set | 1ull << way | (uint64_t)writes << (DIRTY_SHIFT + way);
    if ((state & all) == all)
        state = (state & ~all) | 1ull << way;
    *set = state;
}

bool tcl_cache_hit(const struct tcl_cache *cache, uint64_t line, bool writes) {
    uint64_t *set = cache_set(cache, line);
    uint32_t way = way_of(cache, set, line);
    if (way == cache->ways)
        return false;
    use(cache, set, way, writes);
    return true;
}

bool tcl_cache_fill(const struct tcl_cache *cache, uint64_t line, bool writes, uint64_t *left) {
    uint64_t *set = cache_set(cache, line);
    uint32_t idle = ~(uint32_t)*set & UINT32_MAX >> (32 - cache->ways);
    /* One way alone has no other to prefer. */
    uint32_t way = idle ? (uint32_t)__builtin_ctz(idle) : 0;
    uint64_t dirty_bit = 1ull << (DIRTY_SHIFT + way);
    bool was_dirty = *set & dirty_bit;
    *left = set[1 + way] - 1;
    set[1 + way] = line + 1;
    *set &= ~dirty_bit;
    use(cache, set, way, writes);
    return was_dirty;
}

bool tcl_cache_holds_dirty(const struct tcl_cache *cache, uint64_t line) {
    uint64_t *set = cache_set(cache, line);
    uint32_t way = way_of(cache, set, line);
    return way < cache->ways && *set & 1ull << (DIRTY_SHIFT + way);
}

bool tcl_cache_soil(const struct tcl_cache *cache, uint64_t line) {
    uint64_t *set = cache_set(cache, line);
    uint32_t way = way_of(cache, set, line);
    if (way == cache->ways)
        return false;
    *set |= 1ull << (DIRTY_SHIFT + way);
    return true;
}
