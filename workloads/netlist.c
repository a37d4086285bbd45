/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * netlist: elements of a circuit on a grid exchange places to shorten its wires, as in PARSEC's
 * canneal.
 * In: size, exchanges. Out: one line; right when the length of all wires is what the exchanges made
 * of it.
 * Knows nothing of tiers: elements and their lists of neighbours are chased at random; names and
 * histories, made in turns with them, are not read.
 */
#include "workload.h"

enum { TOTAL_MIB, SWAPS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 64, "MiB in total"},
    [SWAPS] = {"swaps", 500000, "exchanges that are tried"},
    [SEED] = {"seed", 1, "of the circuit and the exchanges"},
    [CORRUPT] = {"corrupt", 0, "1: move an element, which the check must detect"},
};

#define WIRES 5       /* of an element: canneal's inputs have 5 on average */
#define NAME_BYTES 32 /* as net names in canneal's inputs */
#define HISTORY_BYTES 256
/* Of an element: itself, its neighbours, its name, its history, its place in the list of all. */
#define ELEMENT_BYTES (32 + 48 + 32 + 256 + 8)

struct element {
    struct element **neighbours;
    char *name;
    char *history;
    uint32_t x, y;
};

SITE struct element **make_list(size_t count) {
    return must_alloc(count * sizeof(struct element *));
}
SITE struct element *make_element(void) {
    return must_alloc(sizeof(struct element));
}
SITE struct element **make_neighbours(void) {
    return must_alloc(WIRES * sizeof(struct element *));
}
SITE char *make_name(void) {
    return must_alloc(NAME_BYTES);
}
SITE char *make_history(void) {
    return must_alloc(HISTORY_BYTES);
}

static struct element **make_circuit(uint64_t count, uint32_t side) {
    struct element **all = make_list(count);
    for (uint64_t i = 0; i < count; i++) {
        struct element *one = all[i] = make_element();
        one->neighbours = make_neighbours();
        one->name = make_name();
        one->history = memset(make_history(), 0, HISTORY_BYTES);
        snprintf(one->name, NAME_BYTES, "net-%" PRIu64, i);
        one->x = (uint32_t)(i % side);
        one->y = (uint32_t)(i / side);
    }
    uint64_t state = seeded(options[SEED].value, 0);
    for (uint64_t i = 0; i < count; i++) {
        for (unsigned w = 0; w < WIRES; w++) {
            all[i]->neighbours[w] = all[random_below(&state, count)];
        }
    }
    return all;
}

static int64_t apart(uint32_t a, uint32_t b) {
    return a > b ? (int64_t)(a - b) : (int64_t)(b - a);
}

/* The length of an element's own wires, if it were there. */
static int64_t length_at(const struct element *one, uint32_t x, uint32_t y) {
    int64_t length = 0;
    for (unsigned w = 0; w < WIRES; w++) {
        length += apart(x, one->neighbours[w]->x) + apart(y, one->neighbours[w]->y);
    }
    return length;
}

/* Of all wires that begin at an element. */
static int64_t total(struct element *const *all, uint64_t count) {
    int64_t length = 0;
    for (uint64_t i = 0; i < count; i++) {
        length += length_at(all[i], all[i]->x, all[i]->y);
    }
    return length;
}

static void exchange(struct element *a, struct element *b) {
    uint32_t x = a->x, y = a->y;
    a->x = b->x, a->y = b->y;
    b->x = x, b->y = y;
}

/* Exchanges pairs whose own wires get shorter; how many. Wires that lead to them count as well as
 * their own: canneal keeps lists of both, half of these. */
static uint64_t anneal(struct element *const *all, uint64_t count) {
    uint64_t state = seeded(options[SEED].value, 1), accepted = 0;
    for (uint64_t n = 0; n < options[SWAPS].value; n++) {
        struct element *a = all[random_below(&state, count)];
        struct element *b = all[random_below(&state, count)];
        int64_t now = length_at(a, a->x, a->y) + length_at(b, b->x, b->y);
        int64_t then = length_at(a, b->x, b->y) + length_at(b, a->x, a->y);
        if (then < now) {
            exchange(a, b);
            accepted++;
        }
    }
    return accepted;
}

/* Each place of the grid has one element. */
static bool is_placed(struct element *const *all, uint64_t count, uint32_t side) {
    uint64_t sum = 0, wanted = 0;
    for (uint64_t i = 0; i < count; i++) {
        sum += mix((uint64_t)all[i]->y * side + all[i]->x);
        wanted += mix(i);
    }
    return sum == wanted;
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    uint64_t count = options[TOTAL_MIB].value * MIB / ELEMENT_BYTES;
    uint32_t side = 1;
    if (count < 4 || count >= UINT32_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    while ((uint64_t)side * side < count) {
        side++;
    }
    struct element **all = make_circuit(count, side);
    int64_t before = total(all, count);
    uint64_t start = region_begin();
    uint64_t accepted = anneal(all, count);
    uint64_t took = region_end(start);
    all[count / 2]->x += (uint32_t)options[CORRUPT].value;
    int64_t after = total(all, count);
    struct outcome out = {.name = "netlist",
                          .unit = "swaps",
                          .operations = options[SWAPS].value,
                          .took_ns = took,
                          .digest = mix((uint64_t)after ^ accepted),
                          .right = is_placed(all, count, side) && after <= before};
    return conclude(&out);
}
