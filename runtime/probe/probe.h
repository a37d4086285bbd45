/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * probe.h: how the files of probe/ use each other.
 * In: nothing. Out: their types and functions. Knows nothing of sessions.
 *
 *   compiled code --sampled line--> probe.c --> cache.c: L1, L2 of the thread, LLC of the process
 *                                      |--a miss--> cells.c --a record an OS page--> track/ring.c
 *
 * A thread's state is mapped when its first sampled access comes, and unmapped when it ends.
 */
#ifndef TCL_PROBE_H
#define TCL_PROBE_H

#include "../track/track.h"
#include <stdatomic.h>

#define TCL_LINE_SHIFT 6 /* lines of 64 bytes: LINE_BYTES of crates/memsim */

/* ---- cache.c ---------------------------------------------------------------------------------
 *
 *   set    a word    used: a bit a way, by bit-PLRU | dirty: a bit a way, 32 higher
 *          groups    marks: a byte a way, eight to a word, of the line's hash
 *          groups*8  line + 1 of each way; 0: none, as of those that fill up the last group
 */
struct tcl_cache {
    uint64_t *sets;
    uint32_t set_count, ways;
    uint32_t groups; /* of eight ways */
};

/* Words of a set. */
static inline size_t tcl_cache_words(uint32_t groups) {
    return 1 + 9 * (size_t)groups;
}

/* An empty cache of this shape, in memory that is zero. */
static inline struct tcl_cache tcl_cache_in(void *memory, struct tcl_probe_cache shape) {
    return (struct tcl_cache){memory, shape.sets, shape.ways, (shape.ways + 7) / 8};
}

/* What a cache of this shape needs, bytes. */
static inline size_t tcl_cache_bytes(struct tcl_probe_cache shape) {
    return shape.sets * tcl_cache_words(tcl_cache_in(NULL, shape).groups) * sizeof(uint64_t);
}

/* The set a line belongs to: its number. */
static inline uint64_t tcl_cache_set(const struct tcl_cache *cache, uint64_t line) {
    uint64_t count = cache->set_count;
    return tcl_unlikely(count & (count - 1)) ? line % count : line & (count - 1);
}

/* Whether a cache has a line. */
enum tcl_cached { TCL_CACHED_NOT = 0, TCL_CACHED_CLEAN, TCL_CACHED_DIRTY };

/* Reads or writes a line if it is there; how it was before. */
TCL_HIDDEN enum tcl_cached tcl_cache_use(const struct tcl_cache *cache, uint64_t line, bool writes);
/* Brings in a line that is not there. True: `*left` had to leave, and it was written. */
TCL_HIDDEN bool tcl_cache_fill(const struct tcl_cache *cache, uint64_t line, bool writes,
                               uint64_t *left);
/* Whether the line is there and was written; changes nothing. */
TCL_HIDDEN bool tcl_cache_holds_dirty(const struct tcl_cache *cache, uint64_t line);
/* Marks a line as written if it is there, without using it; whether it is. */
TCL_HIDDEN bool tcl_cache_soil(const struct tcl_cache *cache, uint64_t line);

/* ---- cells.c ---------------------------------------------------------------------------------
 *
 *   cells[hash of the OS page]    what the thread missed there since it was last reported
 *   queue of their indexes        oldest first; an occupied cell is in it once
 */
#define TCL_CELLS 65536u /* 256 MiB of OS pages; 2 MiB a thread, as far as touched. Chosen. */

struct tcl_cell {
    uint64_t page; /* address; 0: free */
    uint32_t reads, writes, dirtied;
    uint32_t stamp; /* tcl_probe_stamp of the page when it was first missed */
    uint64_t time;  /* of the last miss: as tcl_misses.time */
    uint64_t from : 56, pattern : 8; /* of the last miss: as in struct tcl_miss */
};

struct tcl_cells {
    struct tcl_cell cells[TCL_CELLS];
    uint32_t queue[TCL_CELLS];
    uint32_t head, tail; /* of the queue, modulo 2^32 */
    uint64_t swept_ms;
    uint32_t until_look; /* misses */
    bool waits_in_vain;  /* the daemon took nothing for as long as a thread waits */
};

/* Counts what one access did: of each 0 or 1. */
struct tcl_miss {
    bool reads, writes, dirties;
    uint8_t pattern; /* enum tiercel_probe_pattern */
    uintptr_t from;  /* where the code that accessed goes on */
};
TCL_HIDDEN void tcl_cells_count(struct tcl_cells *cells, uintptr_t addr, struct tcl_miss miss);
/* Reports all that is in the cells; waits for the daemon where the ring is full. */
TCL_HIDDEN void tcl_cells_flush(struct tcl_cells *cells);
/* Forgets all: they are a parent's. */
TCL_HIDDEN void tcl_cells_forget(struct tcl_cells *cells);

#endif
