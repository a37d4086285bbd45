/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * cells.c: a thread's misses, by OS page, until they are reported.
 * In: misses. Out: records of the thread's ring. Knows nothing of caches.
 *
 * Each millisecond the oldest cells are reported, so many that the daemon can follow. Where more OS
 * pages are missed than that, cells stay longer and grow: what is coarser then is time. A cell is
 * reported early when its OS page died or the program entered a phase (its stamp has changed), so
 * that it never counts for what lives there later.
 */
#include "../track/clock.h"
#include "../track/session.h"
#include "probe.h"
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Cells reported in a millisecond: 256,000 a second, a quarter of what the daemon takes at 1 us for
 * each. Chosen. */
#define SWEEP_CELLS 256u
/* At most so many in one sweep: half a ring. */
#define SWEEP_MAX 2048u
/* Misses between two looks at the clock that says whether a millisecond is over: 5 ns each.
 * Chosen, not measured. */
#define LOOK_MISSES 16u

/* How long a thread waits for the daemon to take records, where cells would be lost otherwise: as
 * long as it takes for a reader to count as gone (READER_GONE_MS of track/ring.c). The step is less
 * than the time in which the daemon takes what waits, 10 ms at most while it records. */
#define WAIT_MS 1000u
#define WAIT_STEP_NS 500000

static bool report_cell(const struct tcl_cell *cell) {
    struct tcl_misses misses = {.page = cell->page,
                                .reads = cell->reads,
                                .writes = cell->writes,
                                .dirtied = cell->dirtied,
                                .time = cell->time,
                                .site = tcl_site_of_code(cell->from),
                                .pattern = cell->pattern};
    return tcl_note_misses(&misses);
}

/* The same, where nothing else is left to be done with it: waits for room, unless that was in vain
 * before. What has none is lost, and counted. */
static void report_cell_at_last(struct tcl_cells *all, const struct tcl_cell *cell) {
    const struct timespec step = {.tv_nsec = WAIT_STEP_NS};
    bool is_reported = report_cell(cell);
    if (!is_reported && !all->waits_in_vain && !tcl_is_filtered()) {
        int saved = errno;
        uint64_t until_ms = tcl_now_ms() + WAIT_MS;
        while (!is_reported && tcl_attached() && tcl_now_ms() < until_ms) {
            syscall(SYS_nanosleep, &step, NULL);
            is_reported = report_cell(cell);
        }
        errno = saved;
    }
    all->waits_in_vain = !is_reported;
    if (!is_reported)
        tcl_lose_misses(cell->reads + cell->writes);
}

/* Reports at most `most` cells, the oldest first. */
static void sweep(struct tcl_cells *all, uint32_t most) {
    while (all->tail != all->head && most--) {
        struct tcl_cell *cell = &all->cells[all->queue[all->tail % TCL_CELLS]];
        if (!report_cell(cell))
            return;
        cell->page = 0;
        all->tail++;
    }
}

static void sweep_if_due(struct tcl_cells *all) {
    if (all->until_look--)
        return;
    all->until_look = LOOK_MISSES;
    uint64_t now = tcl_now_ms(), passed = now - all->swept_ms;
    if (!passed)
        return;
    all->swept_ms = now;
    sweep(all, passed < SWEEP_MAX / SWEEP_CELLS ? (uint32_t)passed * SWEEP_CELLS : SWEEP_MAX);
    tcl_mark_look();
}

/* OS pages that follow one another have cells that do, so that what goes through memory in order
 * goes through the cells in order, and few of them are in use at a time. 64 of them, 2 KiB of
 * cells: chosen, not measured. */
#define NEIGHBOURS 64u

/* Fibonacci hashing of groups of neighbours, by the upper 32 of 64 bits. */
static inline uint32_t index_of(uint64_t page) {
    uint64_t number = page / TCL_PAGE;
    uint32_t group = (uint32_t)(number / NEIGHBOURS * 0x9E3779B97F4A7C15ull >> 32);
    /* The highest bits are mixed best. */
    return group / (UINT32_MAX / (TCL_CELLS / NEIGHBOURS) + 1) * NEIGHBOURS + number % NEIGHBOURS;
}

/* The cell of an OS page. What was there for another one, or in another life, is reported. */
static struct tcl_cell *cell_of(struct tcl_cells *all, uint64_t page) {
    uint32_t index = index_of(page), stamp = tcl_probe_stamp(page);
    struct tcl_cell *cell = &all->cells[index];
    if (tcl_likely(cell->page == page && cell->stamp == stamp))
        return cell;
    if (!cell->page)
        all->queue[all->head++ % TCL_CELLS] = index;
    else
        report_cell_at_last(all, cell);
    *cell = (struct tcl_cell){.page = page, .stamp = stamp};
    return cell;
}

void tcl_cells_count(struct tcl_cells *all, uintptr_t addr, struct tcl_miss miss) {
    struct tcl_cell *cell = cell_of(all, addr & -(uintptr_t)TCL_PAGE);
    struct tcl_instant now = tcl_clock_read(&tcl_control()->clock);
    cell->time = (now.time & ((1ull << TCL_TIME_BITS) - 1)) | (uint64_t)now.flag << 56;
    cell->reads += miss.reads;
    cell->writes += miss.writes;
    cell->dirtied += miss.dirties;
    cell->from = miss.from;
    cell->pattern = miss.pattern;
    sweep_if_due(all);
}

void tcl_cells_flush(struct tcl_cells *all) {
    for (; all->tail != all->head; all->tail++) {
        struct tcl_cell *cell = &all->cells[all->queue[all->tail % TCL_CELLS]];
        report_cell_at_last(all, cell);
        cell->page = 0;
    }
}

void tcl_cells_forget(struct tcl_cells *all) {
    for (; all->tail != all->head; all->tail++)
        all->cells[all->queue[all->tail % TCL_CELLS]].page = 0;
}
