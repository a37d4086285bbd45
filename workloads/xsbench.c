/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * xsbench: macroscopic cross-section lookups on a unionised energy grid, after XSBench: a binary
 * search, then for each nuclide of a material a gather from a big index grid and from its own grid.
 * In: size, nuclides, lookups. Out: one line; right when lookups agree with a search in the
 * nuclides' own grids, without the unionised one.
 * Knows nothing of tiers: the index grid is nearly all of the memory, the nuclide grids are hotter
 * per byte, the energies' search tree and the materials are hottest and small.
 */
#include "team.h"

enum { TOTAL_MIB, NUCLIDES, LOOKUPS, LAST, THREADS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB in total"},
    [NUCLIDES] = {"nuclides", 68, "nuclides: 68 is XSBench's small problem, 355 its large one"},
    [LOOKUPS] = {"lookups", 1000000, "macroscopic lookups"},
    [LAST] = {"last", 0, "1: the index grid is allocated first, hot objects last"},
    [THREADS] = {"threads", 1, "threads, 64 at most"},
    [SEED] = {"seed", 1, "of grids and lookups"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt the index grid, which the check must detect"},
};

#define CHANNELS 5   /* XSBench's cross sections: total, elastic, absorption, fission, nu-fission */
#define MATERIALS 12 /* XSBench's */
/* One in this many lookups is checked. Chosen, not measured. */
#define CHECK_EVERY 256
#define TOLERANCE 1e-12 /* relative: rounding (1e-16) of some hundred terms, with a margin */

/* One point of a nuclide's grid: 48 bytes, as XSBench's. */
struct point {
    double energy;
    double xs[CHANNELS];
};

/* The materials, as in XSBench: how likely a lookup is in each (of 1000), and how many nuclides it
 * has: fuel, cladding, cold and hot water, vessel, reflectors, plenum, nozzle. Fuel has half of the
 * nuclides (34 of 68), or nearly all of them when there are many. */
static const uint32_t small_counts[MATERIALS] = {34, 5, 4, 4, 27, 21, 21, 21, 21, 21, 9, 9};
static const uint32_t likelihoods[MATERIALS] = {140, 52, 275, 134, 154, 64, 66, 55, 8, 15, 25, 13};
#define FUEL_LARGE 321

struct problem {
    uint64_t nuclides;
    /* Points of each nuclide; of the union, `nuclides` times as many. */
    uint64_t points;
    struct point *nuclide_grid;
    double *energies;
    /* For each point of the union and each nuclide, the nuclide's point at or below it. */
    uint32_t *index_grid;
    uint32_t counts[MATERIALS];
    uint32_t *materials[MATERIALS];
    double *densities[MATERIALS];
    uint64_t digests[THREADS_MAX];
    uint64_t wrong[THREADS_MAX];
};

SITE struct point *make_nuclide_grid(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_energies(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint32_t *make_index_grid(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint32_t *make_material(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_densities(uint64_t bytes) {
    return must_alloc(bytes);
}

/* Sorted random energies: a random walk upwards, scaled to end below 1. */
static void fill_nuclide_grid(struct problem *p, uint64_t *state) {
    for (uint64_t n = 0; n < p->nuclides; n++) {
        struct point *grid = p->nuclide_grid + n * p->points;
        double energy = 0.0;
        for (uint64_t i = 0; i < p->points; i++) {
            energy += 0.05 + random_unit(state);
            grid[i].energy = energy;
            for (int c = 0; c < CHANNELS; c++) {
                grid[i].xs[c] = random_unit(state);
            }
        }
        for (uint64_t i = 0; i < p->points; i++) {
            grid[i].energy /= energy + 1.0;
        }
    }
}

/* Merges the nuclides' energies: into the buckets where they should be, then by insertion sort,
 * which finds nearly all in place. `energies` has room for all, `next` for the buckets' starts. */
static void fill_energies(struct problem *p) {
    uint64_t all = p->nuclides * p->points;
    uint32_t *next = must_alloc((all + 1) * sizeof *next);
    memset(next, 0, (all + 1) * sizeof *next);
    for (uint64_t i = 0; i < all; i++) {
        next[(uint64_t)(p->nuclide_grid[i].energy * (double)all) + 1]++;
    }
    for (uint64_t i = 0; i < all; i++) {
        next[i + 1] += next[i];
    }
    for (uint64_t i = 0; i < all; i++) {
        double energy = p->nuclide_grid[i].energy;
        p->energies[next[(uint64_t)(energy * (double)all)]++] = energy;
    }
    give_back(next, (all + 1) * sizeof *next);
    for (uint64_t i = 1; i < all; i++) {
        double energy = p->energies[i];
        uint64_t at = i;
        for (; at > 0 && p->energies[at - 1] > energy; at--) {
            p->energies[at] = p->energies[at - 1];
        }
        p->energies[at] = energy;
    }
}

static void fill_index_grid(struct problem *p) {
    uint32_t *at = must_alloc(p->nuclides * sizeof *at);
    memset(at, 0, p->nuclides * sizeof *at);
    for (uint64_t i = 0; i < p->nuclides * p->points; i++) {
        for (uint64_t n = 0; n < p->nuclides; n++) {
            const struct point *grid = p->nuclide_grid + n * p->points;
            /* The last point but one at most: lookups interpolate to the next. */
            while (at[n] + 2 < p->points && grid[at[n] + 1].energy <= p->energies[i]) {
                at[n]++;
            }
            p->index_grid[i * p->nuclides + n] = at[n];
        }
    }
    give_back(at, p->nuclides * sizeof *at);
}

/* Each material: distinct random nuclides (the first `count` of a shuffle), and densities. */
static void fill_materials(struct problem *p, uint64_t *state) {
    uint32_t *order = must_alloc(p->nuclides * sizeof *order);
    for (uint32_t n = 0; n < p->nuclides; n++) {
        order[n] = n;
    }
    for (int m = 0; m < MATERIALS; m++) {
        uint64_t wanted = m == 0 && p->nuclides > FUEL_LARGE ? FUEL_LARGE : small_counts[m];
        uint64_t count = wanted < p->nuclides ? wanted : p->nuclides;
        p->counts[m] = (uint32_t)count;
        p->materials[m] = make_material(count * sizeof(uint32_t));
        p->densities[m] = make_densities(count * sizeof(double));
        for (uint64_t i = 0; i < count; i++) {
            uint64_t j = i + random_below(state, p->nuclides - i);
            uint32_t kept = order[i];
            order[i] = order[j];
            order[j] = kept;
            p->materials[m][i] = order[i];
            p->densities[m][i] = random_unit(state);
        }
    }
    give_back(order, p->nuclides * sizeof *order);
}

/* The last of `count` sorted energies, `stride` bytes apart, that is not above `energy`; else 0. */
static uint64_t search_sorted(const void *energies, uint64_t stride, uint64_t count,
                              double energy) {
    const char *base = energies;
    uint64_t low = 0;
    for (uint64_t length = count; length > 1;) {
        uint64_t half = length / 2;
        double there = *(const double *)(const void *)(base + (low + half) * stride);
        low = there <= energy ? low + half : low;
        length -= half;
    }
    return low;
}

/* Adds one nuclide's share, interpolated between its points `low` and the next. */
static void add_micro(const struct point *low, double energy, double density, double *macro) {
    double f = (low[1].energy - energy) / (low[1].energy - low[0].energy);
    for (int c = 0; c < CHANNELS; c++) {
        macro[c] += density * (low[1].xs[c] - f * (low[1].xs[c] - low[0].xs[c]));
    }
}

static void look_up(const struct problem *p, int material, double energy, double *macro) {
    uint64_t at = search_sorted(p->energies, sizeof(double), p->nuclides * p->points, energy);
    const uint32_t *row = p->index_grid + at * p->nuclides;
    memset(macro, 0, CHANNELS * sizeof *macro);
    for (uint32_t i = 0; i < p->counts[material]; i++) {
        uint64_t nuclide = p->materials[material][i];
        const struct point *low = p->nuclide_grid + nuclide * p->points + row[nuclide];
        add_micro(low, energy, p->densities[material][i], macro);
    }
}

/* The same without the union: each nuclide's own grid is searched. */
static void look_up_slowly(const struct problem *p, int material, double energy, double *macro) {
    memset(macro, 0, CHANNELS * sizeof *macro);
    for (uint32_t i = 0; i < p->counts[material]; i++) {
        const struct point *grid = p->nuclide_grid + p->materials[material][i] * p->points;
        uint64_t low = search_sorted(grid, sizeof *grid, p->points - 1, energy);
        add_micro(grid + low, energy, p->densities[material][i], macro);
    }
}

/* Energy and material of lookup number `n`: the same in every thread. */
static int choose(uint64_t n, double *energy) {
    uint64_t state = seeded(options[SEED].value, n);
    *energy = random_unit(&state);
    uint64_t roll = random_below(&state, 1000);
    int material = 0;
    for (uint64_t sum = likelihoods[0]; roll >= sum && material + 1 < MATERIALS;) {
        sum += likelihoods[++material];
    }
    return material;
}

static void look_up_share(struct member *member) {
    struct problem *p = member->job;
    struct range mine = my_share(member, options[LOOKUPS].value);
    uint64_t digest = 0;
    for (uint64_t n = mine.begin; n < mine.end; n++) {
        double energy, macro[CHANNELS];
        int material = choose(n, &energy);
        look_up(p, material, energy, macro);
        int most = 0;
        for (int c = 1; c < CHANNELS; c++) {
            most = macro[c] > macro[most] ? c : most;
        }
        digest += bits_of(macro[most]) + (uint64_t)most;
    }
    p->digests[member->me] = digest;
}

static void check_share(struct member *member) {
    struct problem *p = member->job;
    struct range mine = my_share(member, options[LOOKUPS].value / CHECK_EVERY + 1);
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        double energy, fast[CHANNELS], slow[CHANNELS];
        int material = choose(i * CHECK_EVERY, &energy);
        look_up(p, material, energy, fast);
        look_up_slowly(p, material, energy, slow);
        for (int c = 0; c < CHANNELS; c++) {
            double apart = fast[c] - slow[c];
            p->wrong[member->me] += !(apart <= TOLERANCE && apart >= -TOLERANCE);
        }
    }
}

static void build(struct problem *p, uint64_t bytes) {
    uint64_t all = p->nuclides * p->points, state = seeded(options[SEED].value, UINT64_MAX);
    if (options[LAST].value) {
        p->index_grid = make_index_grid(bytes);
        memset(p->index_grid, 0, bytes);
    }
    p->nuclide_grid = make_nuclide_grid(all * sizeof(struct point));
    fill_nuclide_grid(p, &state);
    p->energies = make_energies(all * sizeof(double));
    fill_energies(p);
    if (p->index_grid == NULL) {
        p->index_grid = make_index_grid(bytes);
    }
    fill_index_grid(p);
    fill_materials(p, &state);
    for (uint64_t i = 0; options[CORRUPT].value && i < all * p->nuclides; i += 7) {
        p->index_grid[i] = (uint32_t)((p->index_grid[i] + p->points / 2) % (p->points - 1));
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    static struct problem p;
    uint64_t threads = options[THREADS].value;
    p.nuclides = options[NUCLIDES].value;
    uint64_t point_bytes = p.nuclides * (sizeof(struct point) + 8 + 4 * p.nuclides);
    p.points = point_bytes ? options[TOTAL_MIB].value * MIB / point_bytes : 0;
    if (p.points < 4 || p.nuclides * p.points >= UINT32_MAX || threads == 0 ||
        threads > THREADS_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    uint64_t all = p.nuclides * p.points, index_bytes = all * p.nuclides * sizeof(uint32_t);
    build(&p, index_bytes);
    uint64_t begun = region_begin();
    run_team(threads, look_up_share, &p);
    uint64_t took = region_end(begun), digest = 0, wrong = 0;
    run_team(threads, check_share, &p);
    for (uint64_t t = 0; t < threads; t++) {
        digest += p.digests[t];
        wrong += p.wrong[t];
    }
    for (int m = 0; m < MATERIALS; m++) {
        give_back(p.materials[m], p.counts[m] * sizeof(uint32_t));
        give_back(p.densities[m], p.counts[m] * sizeof(double));
    }
    give_back(p.index_grid, index_bytes);
    give_back(p.energies, all * sizeof(double));
    give_back(p.nuclide_grid, all * sizeof(struct point));
    struct outcome out = {"xsbench", "lookups", options[LOOKUPS].value, took, digest, wrong == 0};
    return conclude(&out);
}
