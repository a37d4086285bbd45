/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_plan.c: objects are born in the plan's arenas: by site, size class, phase and share, within
 * the budget, which deaths refund; by stated space and by hint; and a plan of garbage is harmless.
 * In: a session whose plan table the test fills while the program is stopped.
 */
#include "hazard.h"
#include "tiercel.h"
#include <malloc.h>

#define MIB (1ull << 20)
#define MANY 40  /* objects of a part, two a turn */
#define LARGE 16 /* twice as many as the budget has room for */
#define BUDGET (8 * MIB)
#define CUT_BYTES (32 * MIB)
#define CUT_AT(eighths) (uint16_t)(TCL_PLAN_PARTS * (eighths) / 8 + 1) /* rounded up */
#define LEARN_PAGES 100 /* the first object of a part has so many OS pages, and its number more */

enum part {
    FAST,
    SLOW,
    SPLIT,
    PHASED,
    SIZED,
    UNPLANNED,
    BUDGETED,
    MAPPED,
    PRESCRIBED,
    HINTED,
    STRATEGY,
    PARTS
};
enum round { LEARN, BIRTHS, WITHIN_BUDGET, CUT, GARBAGE, ROUNDS };

static void *large[LARGE + 1]; /* the last: of other rounds */

static enum tiercel_space largest(size_t bytes, const struct tiercel_traits *traits,
                                  void *context) {
    CHECK(bytes && traits->bound == TIERCEL_LATENCY_BOUND && context == &large, "%zu", bytes);
    return TIERCEL_LARGE_CAPACITY;
}

/* Each part has a line of its own, which makes it a site. */
__attribute__((noinline)) static void *make(enum part part, size_t bytes) {
    struct tiercel_traits here = {.space = TIERCEL_LARGE_CAPACITY};
    struct tiercel_traits hint = {.bound = TIERCEL_LATENCY_BOUND};
    void *p = NULL;
    switch (part) {
    case FAST:
        p = malloc(bytes);
        break;
    case SLOW:
        p = calloc(1, bytes);
        break;
    case SPLIT:
        p = malloc(bytes + 0 * part);
        break;
    case PHASED:
        p = realloc(NULL, bytes);
        break;
    case SIZED:
        p = aligned_alloc(4096, bytes);
        break;
    case UNPLANNED:
        p = memalign(64, bytes);
        break;
    case BUDGETED:
        p = memalign(128, bytes);
        break;
    case MAPPED:
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        break;
    case PRESCRIBED:
        p = tiercel_alloc(bytes, &here);
        break;
    case HINTED:
        p = tiercel_aligned_alloc(4096, bytes, &hint);
        break;
    default:
        tiercel_set_strategy(largest, &large);
        p = tiercel_alloc(bytes, &hint);
        tiercel_set_strategy(NULL, NULL);
    }
    CHECK(p, "no memory");
    hazard_sink = p;
    return p;
}

/* All by one call, so that a part has the same stack in every round: nothing around it may depend
 * on the round by a branch, or the compiler makes two calls of it. */
__attribute__((noinline)) static void make_all(enum round round) {
    for (int i = 0; i < (round == LEARN ? 1 : MANY); i++)
        for (int part = 0; part < PARTS; part++) {
            size_t bytes = part == SIZED && i % 2 ? 256 * 1024 : 64 * 1024;
            if (round == LEARN)
                bytes = (size_t)(LEARN_PAGES + part) * TCL_PAGE;
            int kept = LARGE;
            if (round == WITHIN_BUDGET) {
                if (part != BUDGETED || i >= LARGE)
                    continue;
                bytes = MIB;
                kept = i;
            } else if (round == CUT) {
                if ((part != SPLIT && part != MAPPED) || i)
                    continue;
                bytes = CUT_BYTES;
                kept = part == SPLIT ? 0 : LARGE;
            }
            tiercel_phase(i % 2 ? "two" : "one");
            __asm__("" : "+r"(bytes), "+r"(kept));
            large[kept] = make(part, bytes);
        }
}

/* A split object keeps its data when it shrinks, and a calloc in its place is zero, although its
 * ranges are released and come from another node. */
static void end_cut(bool shrinks) {
    size_t words = CUT_BYTES / sizeof(uint64_t);
    uint64_t *cut = large[0];
    for (size_t i = 0; i < words; i++)
        cut[i] = i;
    if (shrinks)
        cut = realloc(cut, CUT_BYTES / 4);
    for (size_t i = 0; i < words / 4; i++)
        CHECK(cut[i] == i, "word %zu of what shrank is %lu", i, cut[i]);
    free(cut);
    cut = calloc(words, sizeof(*cut));
    for (size_t i = 0; i < words; i++)
        CHECK(!cut[i], "word %zu of fresh memory is %lu", i, cut[i]);
    free(cut);
}

static int hosted(void) {
    CHECK(tiercel_is_hosted(), "not hosted");
    /* Two rounds within the budget: deaths after the first make room for the second. */
    enum round rounds[] = {LEARN, BIRTHS, WITHIN_BUDGET, WITHIN_BUDGET, CUT, CUT, CUT, GARBAGE};
    for (int i = 0; i < 8; i++) {
        if (i && i != 5 && i != 6)
            raise(SIGSTOP); /* the daemon looks, and fills its side in */
        for (int k = 0; i == 3 && k < LARGE; k++)
            free(large[k]);
        if (i == 5 || i == 6)
            end_cut(i == 5);
        make_all(rounds[i]);
    }
    return 0;
}

/* ---- The daemon's side ----------------------------------------------------------------------- */

struct count {
    uint64_t in[3]; /* arenas 0, 1, others */
};

static struct count count_of[TCL_SITES_MAX];
static uint64_t hashes[PARTS];
static uint32_t sites[PARTS];

static void tally(uint32_t site, unsigned arena, uint64_t bytes, uint64_t only) {
    if (!only || bytes == only)
        count_of[site].in[arena < 2 ? arena : 2]++;
}

/* Counts what lives by site and arena; `only` objects of so many bytes, 0: all. */
static void count_all(struct session *s, uint64_t only) {
    memset(count_of, 0, sizeof(count_of));
    struct tcl_run *runs = (void *)(s->base + TCL_RUNS_AT);
    struct tcl_map *maps = (void *)(s->base + TCL_MAPS_AT);
    for (uint64_t i = 0; i < header_of(s)->run_high_water; i++) {
        if (i % 256 == 0) {
            off_t data = lseek(s->memfd, (off_t)(TCL_RUNS_AT + i * sizeof(*runs)), SEEK_DATA);
            if (data < 0)
                break;
            i = ((uint64_t)data - TCL_RUNS_AT) / sizeof(*runs);
        }
        if (runs[i].shape && !(runs[i].identity & TCL_BLOCK))
            tally(runs[i].identity >> 32, runs[i].identity >> 8 & 0xff,
                  (runs[i].shape >> 32) * TCL_PAGE, only);
    }
    for (uint32_t i = 0; i < header_of(s)->map_high_water; i++)
        if (maps[i].addr)
            tally(maps[i].site, maps[i].arena, maps[i].size, only);
}

static void learn_sites(struct session *s) {
    struct tcl_site *table = (void *)(s->base + TCL_SITES_AT);
    for (int part = 0; part < PARTS; part++) {
        count_all(s, (uint64_t)(LEARN_PAGES + part) * TCL_PAGE);
        for (uint32_t site = 1; site < header_of(s)->site_count; site++)
            if (count_of[site].in[0] + count_of[site].in[1] + count_of[site].in[2])
                sites[part] = site;
        CHECK(sites[part], "part %d has no site", part);
        hashes[part] = table[sites[part]].hash;
    }
}

static uint64_t hash_of(const char *name) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
    return hash;
}

static struct tcl_plan_row rows[64];
static uint32_t row_count;

static void row(enum part part, uint8_t class, const char *phase, uint8_t arena, uint8_t share) {
    rows[row_count++] =
        (struct tcl_plan_row){.site = hashes[part],
                              .phase = phase ? hash_of(phase) : 0,
                              .size_class = class,
                              .arena = arena,
                              .other = 1 - arena,
                              .share = share,
                              .ranges = {{CUT_AT(1), CUT_AT(2)}, {CUT_AT(5), CUT_AT(6)}}};
}

static int by_key(const void *left, const void *right) {
    const struct tcl_plan_row *a = left, *b = right;
    if (a->site != b->site)
        return a->site < b->site ? -1 : 1;
    if (a->size_class != b->size_class)
        return a->size_class < b->size_class ? -1 : 1;
    return a->phase < b->phase ? -1 : a->phase > b->phase;
}

static void write_plan(struct session *s) {
    row(FAST, TCL_PLAN_CLASS_ANY, NULL, 0, TCL_PLAN_SHARE_ALL);
    row(SLOW, TCL_PLAN_CLASS_ANY, NULL, 1, TCL_PLAN_SHARE_ALL);
    row(SPLIT, TCL_PLAN_CLASS_ANY, NULL, 0, 64);
    row(PHASED, TCL_PLAN_CLASS_ANY, "one", 0, TCL_PLAN_SHARE_ALL);
    row(PHASED, TCL_PLAN_CLASS_ANY, NULL, 1, TCL_PLAN_SHARE_ALL);
    row(SIZED, 16, NULL, 0, TCL_PLAN_SHARE_ALL);
    row(SIZED, TCL_PLAN_CLASS_ANY, NULL, 1, TCL_PLAN_SHARE_ALL);
    row(BUDGETED, TCL_PLAN_CLASS_ANY, NULL, 0, TCL_PLAN_SHARE_ALL);
    row(MAPPED, TCL_PLAN_CLASS_ANY, NULL, 0, TCL_PLAN_SHARE_ALL);
    row(PRESCRIBED, TCL_PLAN_CLASS_ANY, NULL, 0, TCL_PLAN_SHARE_ALL);
    qsort(rows, row_count, sizeof(*rows), by_key);
    memcpy(s->base + TCL_PLAN_AT + TCL_PLAN_ROWS_MAX * sizeof(*rows), rows,
           row_count * sizeof(*rows)); /* generation 1: the second table */
    struct tcl_control *control = control_of(s);
    control->birth_bytes_left[0] = 1024 * MIB;
    control->unplanned_arena = 1;
    control->space_arena[0] = 0, control->space_arena[1] = 0, control->space_arena[2] = 1;
    control->arena_count = 2; /* both on node 0, the one there is everywhere */
    __atomic_store_n(&control->plan, 1ull << 32 | row_count, __ATOMIC_RELEASE);
}

static void expect(enum part part, uint64_t in_fast, uint64_t in_slow) {
    struct count *got = &count_of[sites[part]];
    CHECK(got->in[0] == in_fast && got->in[1] == in_slow, "part %d: %lu and %lu of %lu and %lu",
          part, got->in[0], got->in[1], in_fast, in_slow);
}

static void check_births(struct session *s) {
    count_all(s, 64 * 1024);
    expect(FAST, MANY, 0);
    expect(SLOW, 0, MANY);
    expect(SPLIT, MANY * 64 / 255, MANY - MANY * 64 / 255);
    expect(PHASED, MANY / 2, MANY / 2);
    expect(SIZED, MANY / 2, 0);
    expect(UNPLANNED, 0, MANY);
    expect(MAPPED, MANY, 0);
    expect(PRESCRIBED, 0, MANY);
    expect(HINTED, MANY, 0);
    expect(STRATEGY, 0, MANY);
    count_all(s, 256 * 1024);
    expect(SIZED, 0, MANY / 2);
}

/* Of a large object the two ranges are taken, in whole OS pages; of a mapping with one place, all.
 * Two objects of three are gone, and their ranges' room is there again. */
static void check_cuts(struct session *s, pid_t pid) {
    int64_t ranges = CUT_BYTES / 4, maps = 3 * CUT_BYTES;
    int64_t *left = control_of(s)->birth_bytes_left;
    *left = 4 * CUT_BYTES;
    kill(pid, SIGCONT);
    wait_stop(pid);
    count_all(s, CUT_BYTES);
    expect(SPLIT, 0, 1);
    expect(MAPPED, 3, 0);
    int64_t taken = 4 * (int64_t)CUT_BYTES - *left;
    CHECK(taken == maps + ranges, "%ld by ranges where %ld were to be", taken - maps, ranges);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1)
        return hosted();
    struct daemon d = {0};
    open_daemon(&d);
    pid_t pid = start_hosted(&d, "hosted");
    struct session *s = first_session(&d);
    struct tcl_control *control = control_of(s);
    wait_stop(pid);
    learn_sites(s);
    write_plan(s);
    kill(pid, SIGCONT);
    wait_stop(pid);
    check_births(s);
    control->birth_bytes_left[0] = BUDGET;
    for (int round = 0; round < 2; round++) {
        kill(pid, SIGCONT);
        wait_stop(pid);
        count_all(s, MIB);
        expect(BUDGETED, BUDGET / MIB, LARGE - BUDGET / MIB);
    }
    check_cuts(s, pid);
    memset(s->base + TCL_PLAN_AT, 0xa5, 2 * TCL_PLAN_ROWS_MAX * sizeof(*rows));
    __atomic_store_n(&control->plan, 2ull << 32 | TCL_PLAN_ROWS_MAX, __ATOMIC_RELEASE);
    kill(pid, SIGCONT);
    int status = serve(&d, pid);
    CHECK(status == 0, "wait status %x, stderr: %s", status, errors_of(&d));
    check_objects(s);
    printf("track_plan: born by site, class, phase, share, space and hint, within the budget\n");
    close_daemon(&d);
    return 0;
}
