/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * cache.c: one set-associative write-back cache with pseudo-LRU replacement, as Cache of
 * crates/memsim/src/cache.rs: the same lines hit, miss and leave.
 * In: line numbers. Out: hit or miss, what had to leave. Knows nothing of levels or threads.
 *
 * Bit-PLRU: a use sets the way's bit; when all are set, all others are cleared; the victim is the
 * first way whose bit is clear.
 *
 * A look-up compares eight marks at once, and lines only where a mark agrees: most lines that are
 * not there cost one comparison for eight ways, without a branch that is hard to predict.
 */
#include "probe.h"

/* The bits of use are below: 32 ways at most, as MAX_WAYS of crates/memsim. */
#define DIRTY_SHIFT 32
/* The lowest and the highest bit of each byte of a word. */
#define LOW_BITS 0x0101010101010101ull
#define HIGH_BITS 0x8080808080808080ull

static inline uint64_t *cache_set(const struct tcl_cache *cache, uint64_t line) {
    return cache->sets + tcl_cache_set(cache, line) * tcl_cache_words(cache->groups);
}

/* Fibonacci hashing, by the upper 8 of 64 bits. */
static inline uint64_t mark_of(uint64_t line) {
    return line * 0x9E3779B97F4A7C15ull >> 56;
}

/* The way that has the line, or the number of ways. */
static inline uint32_t way_of(const struct tcl_cache *cache, const uint64_t *set, uint64_t line) {
    const uint64_t *marks = set + 1, *lines = marks + cache->groups;
    uint64_t wanted = mark_of(line) * LOW_BITS;
    for (uint32_t group = 0; group < cache->groups; group++) {
        uint64_t apart = marks[group] ^ wanted;
        /* The highest bit of each byte that is 0, and of some above one: the line decides. */
        uint64_t alike = (apart - LOW_BITS) & ~apart & HIGH_BITS;
        for (; alike; alike &= alike - 1) {
            uint32_t way = group * 8 + (uint32_t)__builtin_ctzll(alike) / 8;
            if (tcl_likely(lines[way] == line + 1))
                return way;
        }
    }
    return cache->ways;
}

static inline void use(const struct tcl_cache *cache, uint64_t *set, uint32_t way, bool writes) {
    uint64_t all = UINT32_MAX >> (32 - cache->ways);
    uint64_t state = *set | 1ull << way | (uint64_t)writes << (DIRTY_SHIFT + way);
    if ((state & all) == all)
        state = (state & ~all) | 1ull << way;
    *set = state;
}

static inline enum tcl_cached state_of(const uint64_t *set, uint32_t way) {
    return *set & 1ull << (DIRTY_SHIFT + way) ? TCL_CACHED_DIRTY : TCL_CACHED_CLEAN;
}

enum tcl_cached tcl_cache_use(const struct tcl_cache *cache, uint64_t line, bool writes) {
    uint64_t *set = cache_set(cache, line);
    uint32_t way = way_of(cache, set, line);
    if (way == cache->ways)
        return TCL_CACHED_NOT;
    enum tcl_cached was = state_of(set, way);
    use(cache, set, way, writes);
    return was;
}

bool tcl_cache_fill(const struct tcl_cache *cache, uint64_t line, bool writes, uint64_t *left) {
    uint64_t *set = cache_set(cache, line), *marks = set + 1, *lines = marks + cache->groups;
    uint32_t idle = ~(uint32_t)*set & UINT32_MAX >> (32 - cache->ways);
    /* One way alone has no other to prefer. */
    uint32_t way = idle ? (uint32_t)__builtin_ctz(idle) : 0, shift = way % 8 * 8;
    bool was_dirty = state_of(set, way) == TCL_CACHED_DIRTY;
    *left = lines[way] - 1;
    lines[way] = line + 1;
    marks[way / 8] = (marks[way / 8] & ~(0xFFull << shift)) | mark_of(line) << shift;
    *set &= ~(1ull << (DIRTY_SHIFT + way));
    use(cache, set, way, writes);
    return was_dirty;
}

bool tcl_cache_holds_dirty(const struct tcl_cache *cache, uint64_t line) {
    uint64_t *set = cache_set(cache, line);
    uint32_t way = way_of(cache, set, line);
    return way < cache->ways && state_of(set, way) == TCL_CACHED_DIRTY;
}

bool tcl_cache_soil(const struct tcl_cache *cache, uint64_t line) {
    uint64_t *set = cache_set(cache, line);
    uint32_t way = way_of(cache, set, line);
    if (way == cache->ways)
        return false;
    *set |= 1ull << (DIRTY_SHIFT + way);
    return true;
}
