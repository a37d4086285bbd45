/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * bt: block-tridiagonal solves along the lines of a 3-D grid, x, then y, then z, after NPB BT: an
 * approximately factored implicit scheme for five coupled fields.
 * In: size, steps. Out: one line; right when the fields come near to the solution that the forcing
 * was made for, by as much as the scheme promises.
 * Knows nothing of tiers: fields and right-hand side are walked three ways, by the z sweep in steps
 * of a plane; the forcing is read once a step; speeds and a line's blocks live for a step or a
 * sweep.
 */
#include "block5.h"
#include "team.h"

enum { TOTAL_MIB, STEPS, THREADS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB in total"},
    [STEPS] = {"steps", 4, "time steps"},
    [THREADS] = {"threads", 1, "threads, 64 at most"},
    [SEED] = {"seed", 1, "of the disturbance the fields begin with"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt the fields, which the check must detect"},
};

/* Chosen, not measured: a step so long that only an implicit scheme is stable, and a disturbance
 * that is small for fields of the order of 1. */
#define VISCOSITY 0.3
#define STEP 1.0
#define DISTURBANCE 0.1
/* The largest rest of the disturbance. It has all wavelengths: half of it is gone after one step,
 * and long waves stay. Chosen, with a margin above that. */
#define GONE_ONE_STEP 0.7
#define GONE_THREE_STEPS 0.45
/* For each cell: fields, right-hand side, forcing, speed. */
#define CELL_BYTES ((3 * FIELDS + 1) * 8)

typedef double cell[FIELDS];

struct grid {
    uint64_t side, cells;
    cell *fields, *right_side, *forcing;
    double *slowness;
    /* Each thread's line: what is left of the upper blocks. */
    block *line[THREADS_MAX];
};

SITE cell *make_fields(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE cell *make_right_side(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE cell *make_forcing(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_speeds(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE block *make_line(uint64_t bytes) {
    return must_alloc(bytes);
}

/* The solution: a polynomial of the position, like NPB's, between 0 and 1. */
static void exact(const struct grid *g, uint64_t x, uint64_t y, uint64_t z, cell out) {
    double span = (double)(g->side - 1), a = (double)x / span, b = (double)y / span;
    double c = (double)z / span;
    for (int m = 0; m < FIELDS; m++) {
        double weight = 0.2 + 0.1 * m;
        out[m] = weight * a * (1.0 - a) + 0.3 * b * b + (0.5 - weight / 4) * c * a + 0.1 * b * c;
    }
}

static void speed_phase(struct member *member) {
    struct grid *g = member->job;
    struct range mine = my_share(member, g->cells);
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        g->slowness[i] = inverse_speed(g->fields[i]);
    }
}

/* What a steady state lacks: forcing, minus convection, plus diffusion. */
static void right_side_of(const struct grid *g, uint64_t at, const cell forcing, cell out) {
    const uint64_t strides[3] = {1, g->side, g->side * g->side};
    memcpy(out, forcing, sizeof(cell));
    for (int axis = 0; axis < 3; axis++) {
        const double *before = g->fields[at - strides[axis]], *here = g->fields[at];
        const double *after = g->fields[at + strides[axis]];
        block slope;
        cell difference;
        flux_slope(axis, here, g->slowness[at], slope);
        for (int m = 0; m < FIELDS; m++) {
            difference[m] = after[m] - before[m];
            out[m] += VISCOSITY * (after[m] - 2.0 * here[m] + before[m]);
        }
        add_product(slope, difference, -0.5, out);
    }
}

static bool inside(const struct grid *g, uint64_t x, uint64_t y, uint64_t z) {
    uint64_t last = g->side - 1;
    return x > 0 && y > 0 && z > 0 && x < last && y < last && z < last;
}

static void right_side_phase(struct member *member) {
    struct grid *g = member->job;
    struct range mine = my_share(member, g->side);
    for (uint64_t z = mine.begin; z < mine.end; z++) {
        for (uint64_t y = 0; y < g->side; y++) {
            for (uint64_t x = 0; x < g->side; x++) {
                uint64_t at = (z * g->side + y) * g->side + x;
                memset(g->right_side[at], 0, sizeof(cell));
                if (inside(g, x, y, z)) {
                    right_side_of(g, at, g->forcing[at], g->right_side[at]);
                    for (int m = 0; m < FIELDS; m++) {
                        g->right_side[at][m] *= STEP;
                    }
                }
            }
        }
    }
}

/* One line: the block-tridiagonal system of an implicit step along `axis`, solved in place. The
 * line's ends stay as they are. */
static void solve_line(struct grid *g, block *upper, uint64_t first, uint64_t stride, int axis) {
    memset(upper[0], 0, sizeof(block));
    for (uint64_t i = 1; i + 1 < g->side; i++) {
        uint64_t at = first + i * stride;
        block slope, lower, diagonal;
        flux_slope(axis, g->fields[at], g->slowness[at], slope);
        memset(diagonal, 0, sizeof diagonal);
        for (int m = 0; m < FIELDS; m++) {
            for (int k = 0; k < FIELDS; k++) {
                lower[m][k] = -0.5 * STEP * slope[m][k];
                upper[i][m][k] = 0.5 * STEP * slope[m][k];
            }
            lower[m][m] -= STEP * VISCOSITY;
            upper[i][m][m] -= STEP * VISCOSITY;
            diagonal[m][m] = 1.0 + 2.0 * STEP * VISCOSITY;
        }
        subtract_product(lower, upper[i - 1], diagonal);
        add_product(lower, g->right_side[at - stride], -1.0, g->right_side[at]);
        solve_block(diagonal, upper[i], g->right_side[at]);
    }
    for (uint64_t i = g->side - 2; i > 1; i--) {
        uint64_t at = first + (i - 1) * stride;
        add_product(upper[i - 1], g->right_side[at + stride], -1.0, g->right_side[at]);
    }
}

/* All lines along an axis, through the inner cells of the plane across it. */
static void sweep_phase(struct member *member, int axis) {
    struct grid *g = member->job;
    const uint64_t strides[3] = {1, g->side, g->side * g->side};
    uint64_t inner = strides[axis == 0 ? 1 : 0], outer = strides[axis == 2 ? 1 : 2];
    struct range mine = my_share(member, g->side - 2);
    g->line[member->me] = make_line(g->side * sizeof(block));
    for (uint64_t o = mine.begin; o < mine.end; o++) {
        for (uint64_t i = 1; i + 1 < g->side; i++) {
            uint64_t first = (o + 1) * outer + i * inner;
            solve_line(g, g->line[member->me], first, strides[axis], axis);
        }
    }
    give_back(g->line[member->me], g->side * sizeof(block));
    wait_for_all(member);
}

static void add_phase(struct member *member) {
    struct grid *g = member->job;
    struct range mine = my_share(member, g->cells);
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        for (int m = 0; m < FIELDS; m++) {
            g->fields[i][m] += g->right_side[i][m];
        }
    }
    wait_for_all(member);
}

static void announce(struct member *member, const char *phase) {
    if (member->me == 0) {
        enter_phase(phase);
    }
}

static void simulate(struct member *member) {
    struct grid *g = member->job;
    static const char *const sweeps[] = {"x sweep", "y sweep", "z sweep"};
    for (uint64_t s = 0; s < options[STEPS].value; s++) {
        announce(member, "right side");
        if (member->me == 0) {
            g->slowness = make_speeds(g->cells * sizeof(double));
        }
        wait_for_all(member);
        speed_phase(member);
        wait_for_all(member);
        right_side_phase(member);
        wait_for_all(member);
        for (int axis = 0; axis < 3; axis++) {
            announce(member, sweeps[axis]);
            sweep_phase(member, axis);
        }
        if (member->me == 0) {
            give_back(g->slowness, g->cells * sizeof(double));
        }
        add_phase(member);
    }
}

/* Root of the mean squared difference of fields and solution. */
static double error_of(const struct grid *g, uint64_t *digest) {
    double sum = 0.0;
    for (uint64_t i = 0; i < g->cells; i++) {
        cell want;
        exact(g, i % g->side, i / g->side % g->side, i / g->side / g->side, want);
        for (int m = 0; m < FIELDS; m++) {
            double apart = g->fields[i][m] - want[m];
            sum += apart * apart;
            *digest = mix(*digest + bits_of(g->fields[i][m]));
        }
    }
    return sqrt(sum / (double)(g->cells * FIELDS));
}

/* Sets the forcing that makes the solution steady, then disturbs the fields inside. */
static void build(struct grid *g) {
    g->fields = make_fields(g->cells * sizeof(cell));
    g->right_side = make_right_side(g->cells * sizeof(cell));
    g->forcing = make_forcing(g->cells * sizeof(cell));
    g->slowness = make_speeds(g->cells * sizeof(double));
    for (uint64_t i = 0; i < g->cells; i++) {
        exact(g, i % g->side, i / g->side % g->side, i / g->side / g->side, g->fields[i]);
        g->slowness[i] = inverse_speed(g->fields[i]);
        memset(g->right_side[i], 0, sizeof(cell));
    }
    for (uint64_t i = 0; i < g->cells; i++) {
        memset(g->forcing[i], 0, sizeof(cell));
        if (inside(g, i % g->side, i / g->side % g->side, i / g->side / g->side)) {
            const cell none = {0};
            right_side_of(g, i, none, g->forcing[i]);
            for (int m = 0; m < FIELDS; m++) {
                g->forcing[i][m] = -g->forcing[i][m];
            }
        }
    }
    give_back(g->slowness, g->cells * sizeof(double));
    uint64_t state = seeded(options[SEED].value, 0);
    for (uint64_t i = 0; i < g->cells; i++) {
        bool within = inside(g, i % g->side, i / g->side % g->side, i / g->side / g->side);
        for (int m = 0; within && m < FIELDS; m++) {
            g->fields[i][m] += DISTURBANCE * (2.0 * random_unit(&state) - 1.0);
        }
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    static struct grid g;
    uint64_t threads = options[THREADS].value, steps = options[STEPS].value;
    g.side = (uint64_t)cbrt((double)(options[TOTAL_MIB].value * MIB / CELL_BYTES));
    g.cells = g.side * g.side * g.side;
    if (g.side < 8 || steps == 0 || threads == 0 || threads > THREADS_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    build(&g);
    uint64_t digest = 0;
    double before = error_of(&g, &digest);
    uint64_t begun = region_begin();
    run_team(threads, simulate, &g);
    uint64_t took = region_end(begun);
    for (uint64_t i = 0; options[CORRUPT].value && i < g.cells; i += 97) {
        g.fields[i][i % FIELDS] += 1.0;
    }
    double after = error_of(&g, &digest);
    bool right = after < before * (steps < 3 ? GONE_ONE_STEP : GONE_THREE_STEPS);
    give_back(g.forcing, g.cells * sizeof(cell));
    give_back(g.right_side, g.cells * sizeof(cell));
    give_back(g.fields, g.cells * sizeof(cell));
    struct outcome out = {"bt", "cell-steps", steps * g.cells, took, digest, right};
    return conclude(&out);
}
