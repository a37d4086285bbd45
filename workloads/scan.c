/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * scan: read-only queries on a table kept by columns, each with the least and the most of its zones
 * of rows: sum one column where another, by which rows came in, lies in a range, and a third has
 * some value. Few columns are asked for often, and the newest rows most.
 * In: size, columns, queries. Out: one line; right when the sums of queries done again without the
 * table agree.
 * Knows nothing of tiers: columns are mapped one by one in the order of the schema, which says
 * nothing of how often they are asked for.
 */
#include "team.h"

enum { TOTAL_MIB, COLUMNS, QUERIES, THREADS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB of the table"},
    [COLUMNS] = {"columns", 24, "columns, 4 to 128"},
    [QUERIES] = {"queries", 64, "queries"},
    [THREADS] = {"threads", 1, "threads, 64 at most"},
    [SEED] = {"seed", 1, "of values and queries"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt each column, which the check must detect"},
};

/* Chosen, not measured: 16 KiB of a column a zone. */
#define COLUMNS_MAX 128
#define ZONE_ROWS 4096
/* A value's range; the third column of a query keeps one row in SELECTED.
 * Chosen, not measured. */
#define VALUES 1024
#define SELECTED 4
/* Queries that are done again: one in so many. Chosen, not measured. */
#define CHECK_EVERY 16

struct zone {
    uint32_t least;
    uint32_t most;
};

struct table {
    uint64_t columns, rows, zones;
    uint32_t *column[COLUMNS_MAX];
    struct zone *zone_map[COLUMNS_MAX];
    uint64_t scanned[THREADS_MAX];
};

/* Sum `summed` where the first column is in [from, to) and `filter` is below VALUES / SELECTED. */
struct query {
    uint32_t from, to;
    uint64_t filter, summed;
    uint64_t parts[THREADS_MAX];
};

struct task {
    struct table *table;
    struct query query;
};

SITE uint32_t *map_column(uint64_t bytes) {
    return must_map(bytes);
}
SITE struct zone *make_zone_map(uint64_t bytes) {
    return must_alloc(bytes);
}

/* Column 0 is the time at which a row was inserted: it increases, with some disorder within about a
 * zone's length. The other columns are random. */
static uint32_t value_of(uint64_t column, uint64_t row) {
    uint64_t chance = mix(row * COLUMNS_MAX + column + (options[SEED].value << 40));
    return column == 0 ? (uint32_t)(row + chance % ZONE_ROWS) : (uint32_t)(chance % VALUES);
}

static void fill_share(struct member *member) {
    struct table *t = member->job;
    struct range mine = my_share(member, t->zones);
    for (uint64_t c = 0; c < t->columns; c++) {
        for (uint64_t z = mine.begin; z < mine.end; z++) {
            struct zone zone = {UINT32_MAX, 0};
            for (uint64_t row = z * ZONE_ROWS; row < (z + 1) * ZONE_ROWS; row++) {
                uint32_t value = value_of(c, row);
                t->column[c][row] = value;
                zone.least = value < zone.least ? value : zone.least;
                zone.most = value > zone.most ? value : zone.most;
            }
            t->zone_map[c][z] = zone;
        }
    }
}

/* Popularity halves every few columns; the popular columns are anywhere in the schema. */
static uint64_t choose_column(const struct table *t, uint64_t *state) {
    uint64_t rank = 0;
    while (rank + 2 < t->columns && random_below(state, 100) >= 30) {
        rank++;
    }
    uint64_t others = t->columns - 1;
    return 1 + (rank * 7 + options[SEED].value) % others;
}

/* A range of an eighth to all of the rows; every second range ends with the newest row. */
static void choose_query(const struct table *t, struct query *q, uint64_t *state) {
    uint64_t length = t->rows / 8 + random_below(state, t->rows / 2);
    uint64_t latest = t->rows - length;
    uint64_t from = next_random(state) >> 63 ? latest : random_below(state, latest + 1);
    q->from = (uint32_t)from;
    q->to = (uint32_t)(from + length);
    q->filter = choose_column(t, state);
    q->summed = choose_column(t, state);
}

static uint64_t scan_zone(const struct table *t, const struct query *q, uint64_t zone) {
    const uint32_t *when = t->column[0], *filter = t->column[q->filter];
    const uint32_t *summed = t->column[q->summed];
    struct zone times = t->zone_map[0][zone];
    uint64_t first = zone * ZONE_ROWS, sum = 0;
    if (times.least >= q->from && times.most < q->to) {
        for (uint64_t row = first; row < first + ZONE_ROWS; row++) {
            sum += filter[row] < VALUES / SELECTED ? summed[row] : 0;
        }
        return sum;
    }
    for (uint64_t row = first; row < first + ZONE_ROWS; row++) {
        bool in = when[row] >= q->from && when[row] < q->to;
        sum += in && filter[row] < VALUES / SELECTED ? summed[row] : 0;
    }
    return sum;
}

static void query_share(struct member *member) {
    struct task *task = member->job;
    struct table *t = task->table;
    struct query *q = &task->query;
    struct range mine = my_share(member, t->zones);
    uint64_t sum = 0, scanned = 0;
    for (uint64_t zone = mine.begin; zone < mine.end; zone++) {
        struct zone times = t->zone_map[0][zone], values = t->zone_map[q->filter][zone];
        if (times.most < q->from || times.least >= q->to || values.least >= VALUES / SELECTED) {
            continue;
        }
        sum += scan_zone(t, q, zone);
        scanned += ZONE_ROWS;
    }
    q->parts[member->me] = sum;
    t->scanned[member->me] += scanned;
}

static uint64_t answer(struct task *task, uint64_t threads) {
    run_team(threads, query_share, task);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < threads; i++) {
        sum += task->query.parts[i];
    }
    return sum;
}

/* Computed by the formula that made the values, not from the table. */
static uint64_t answer_without(const struct table *t, const struct query *q) {
    uint64_t sum = 0;
    for (uint64_t row = 0; row < t->rows; row++) {
        uint32_t when = value_of(0, row);
        if (when >= q->from && when < q->to && value_of(q->filter, row) < VALUES / SELECTED) {
            sum += value_of(q->summed, row);
        }
    }
    return sum;
}

static void build(struct table *t, uint64_t threads) {
    for (uint64_t c = 0; c < t->columns; c++) {
        t->column[c] = map_column(t->rows * sizeof(uint32_t));
        t->zone_map[c] = make_zone_map(t->zones * sizeof(struct zone));
    }
    run_team(threads, fill_share, t);
    for (uint64_t c = 1; options[CORRUPT].value && c < t->columns; c++) {
        for (uint64_t row = 0; row < t->rows; row += 1009) {
            t->column[c][row] ^= 5;
        }
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    static struct table t;
    uint64_t threads = options[THREADS].value, queries = options[QUERIES].value;
    t.columns = options[COLUMNS].value;
    if (t.columns < 4 || t.columns > COLUMNS_MAX || queries == 0 || threads == 0 ||
        threads > THREADS_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    t.zones = options[TOTAL_MIB].value * MIB / t.columns /
              (ZONE_ROWS * sizeof(uint32_t) + sizeof(struct zone));
    t.rows = t.zones * ZONE_ROWS;
    if (t.zones < 8 || t.rows > UINT32_MAX - ZONE_ROWS) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    build(&t, threads);
    uint64_t *answers = must_alloc(queries * sizeof *answers), wrong = 0, digest = 0, scanned = 0;
    uint64_t state = seeded(options[SEED].value, 1), again = state, begun = region_begin();
    static struct task task;
    task.table = &t;
    for (uint64_t n = 0; n < queries; n++) {
        choose_query(&t, &task.query, &state);
        answers[n] = answer(&task, threads);
    }
    uint64_t took = region_end(begun);
    for (uint64_t n = 0; n < queries; n++) {
        choose_query(&t, &task.query, &again);
        wrong += n % CHECK_EVERY == 0 && answers[n] != answer_without(&t, &task.query);
        digest = mix(digest + answers[n]);
    }
    for (uint64_t i = 0; i < threads; i++) {
        scanned += t.scanned[i];
    }
    give_back(answers, queries * sizeof *answers);
    for (uint64_t c = 0; c < t.columns; c++) {
        give_back(t.zone_map[c], t.zones * sizeof(struct zone));
        unmap(t.column[c], t.rows * sizeof(uint32_t));
    }
    struct outcome out = {"scan", "rows", scanned, took, digest, wrong == 0};
    return conclude(&out);
}
