/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * bwaves: implicit time steps of five coupled fields on a 3-D grid, after SPEC's bwaves: each step
 * fills seven 5 x 5 blocks a cell and solves with them by BiCGStab, whose vectors live as long as
 * the solve.
 * In: size, steps. Out: one line; right when each step adds to the fields what its right-hand side,
 * made without the blocks, was made of, and the residuals are true.
 * Knows nothing of tiers: the blocks are nearly all of the memory and streamed; the solver's
 * vectors are hotter by the byte.
 */
#include "block5.h"
#include "team.h"

enum { TOTAL_MIB, STEPS, THREADS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB in total"},
    [STEPS] = {"steps", 2, "time steps"},
    [THREADS] = {"threads", 1, "threads, 64 at most"},
    [SEED] = {"seed", 1, "of the fields and of what steps add"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt the blocks, which the check must detect"},
};

/* Chosen, not measured: so large that the solver needs a few dozen iterations. */
#define VISCOSITY 0.5
/* Of the residual: far below the discretisation, far above rounding (1e-16). */
#define TOLERANCE 1e-9
/* Chosen, not measured: bounds the loop. */
#define ITERATIONS_MAX 100
/* The cell itself, and the cells before and behind along each axis. */
#define BLOCKS 7
/* For each cell: blocks; fields, right-hand side, solution; the solver's six vectors. */
#define CELL_BYTES (BLOCKS * FIELDS * FIELDS * 8 + (3 + 6) * FIELDS * 8)

typedef double cell[FIELDS];

struct flow {
    uint64_t side, cells, step;
    cell *fields, *right_side, *found;
    block *blocks[BLOCKS];
    /* The solver's vectors, NULL between solves: residual, first residual, direction and its
     * product, half a step's residual and its product. */
    cell *r, *first, *p, *v, *s, *t;
    uint64_t iterations;
    double true_norm;
};

SITE cell *make_fields(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE cell *make_right_side(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE cell *make_found(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE block *make_blocks(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE cell *make_solver_vector(uint64_t bytes) {
    return must_alloc(bytes);
}

/* What a step is to add to a cell: random but fixed, between -1 and 1. */
static void addition(uint64_t step, uint64_t at, cell out) {
    uint64_t state = seeded(options[SEED].value + (step + 1) * 1000003, at);
    for (int m = 0; m < FIELDS; m++) {
        out[m] = 2.0 * random_unit(&state) - 1.0;
    }
}

/* No cell. */
#define OUTSIDE UINT64_MAX

/* Where a cell and its six neighbours are, in the order of the blocks. */
static void find_neighbours(const struct flow *f, uint64_t at, uint64_t there[BLOCKS]) {
    uint64_t row = at / f->side, plane = row / f->side;
    uint64_t place[3] = {at - row * f->side, row - plane * f->side, plane}, stride = 1;
    there[0] = at;
    for (int axis = 0; axis < 3; axis++, stride *= f->side) {
        there[1 + 2 * axis] = place[axis] > 0 ? at - stride : OUTSIDE;
        there[2 + 2 * axis] = place[axis] + 1 < f->side ? at + stride : OUTSIDE;
    }
}

/* Block `which` of a cell with values `u`: implicit convection and diffusion. */
static void block_of(const cell u, double slow, int which, block out) {
    if (which == 0) {
        flux_slope(0, u, slow, out);
        for (int m = 0; m < FIELDS; m++) {
            for (int k = 0; k < FIELDS; k++) {
                out[m][k] *= 0.5;
            }
            out[m][m] += 1.0 + 6.0 * VISCOSITY;
        }
        return;
    }
    double half = which % 2 == 1 ? -0.5 : 0.5;
    flux_slope((which - 1) / 2, u, slow, out);
    for (int m = 0; m < FIELDS; m++) {
        for (int k = 0; k < FIELDS; k++) {
            out[m][k] *= half;
        }
        out[m][m] -= VISCOSITY;
    }
}

static void jacobian_phase(struct member *member) {
    struct flow *f = member->job;
    struct range mine = my_share(member, f->cells);
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        double slow = inverse_speed(f->fields[i]);
        for (int b = 0; b < BLOCKS; b++) {
            block_of(f->fields[i], slow, b, f->blocks[b][i]);
        }
    }
}

/* The right-hand side: the operator on what the step should add, without the stored blocks. */
static void right_side_phase(struct member *member) {
    struct flow *f = member->job;
    struct range mine = my_share(member, f->cells);
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        double slow = inverse_speed(f->fields[i]);
        uint64_t there[BLOCKS];
        find_neighbours(f, i, there);
        memset(f->right_side[i], 0, sizeof(cell));
        for (int b = 0; b < BLOCKS; b++) {
            block coefficients;
            cell add;
            if (there[b] == OUTSIDE) {
                continue;
            }
            addition(f->step, there[b], add);
            block_of(f->fields[i], slow, b, coefficients);
            add_product(coefficients, add, 1.0, f->right_side[i]);
        }
    }
}

static void multiply(const struct flow *f, struct range mine, cell *const in, cell *out) {
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        cell sum = {0};
        uint64_t there[BLOCKS];
        find_neighbours(f, i, there);
        for (int b = 0; b < BLOCKS; b++) {
            if (there[b] != OUTSIDE) {
                add_product(f->blocks[b][i], in[there[b]], 1.0, sum);
            }
        }
        memcpy(out[i], sum, sizeof sum);
    }
}

static double dot(struct member *member, struct range mine, cell *const a, cell *const b) {
    double sum = 0.0;
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        for (int m = 0; m < FIELDS; m++) {
            sum += a[i][m] * b[i][m];
        }
    }
    return sum_of_all(member, sum);
}

/* out = a + factor x b. */
static void combine(struct range mine, cell *out, cell *const a, double factor, cell *const b) {
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        for (int m = 0; m < FIELDS; m++) {
            out[i][m] = a[i][m] + factor * b[i][m];
        }
    }
}

/* Van der Vorst's BiCGStab from zero. */
static void solve(struct member *member, struct range mine) {
    struct flow *f = member->job;
    uint64_t bytes = (mine.end - mine.begin) * sizeof(cell), iteration = 0;
    memset(f->found + mine.begin, 0, bytes);
    cell *starts[] = {f->r, f->first, f->p};
    for (int i = 0; i < 3; i++) {
        memcpy(starts[i] + mine.begin, f->right_side + mine.begin, bytes);
    }
    double rho = dot(member, mine, f->first, f->r), begun = rho, now = rho;
    for (; iteration < ITERATIONS_MAX && now > TOLERANCE * TOLERANCE * begun; iteration++) {
        multiply(f, mine, f->p, f->v);
        double alpha = rho / dot(member, mine, f->first, f->v);
        combine(mine, f->s, f->r, -alpha, f->v);
        wait_for_all(member);
        multiply(f, mine, f->s, f->t);
        double omega = dot(member, mine, f->t, f->s) / dot(member, mine, f->t, f->t);
        combine(mine, f->found, f->found, alpha, f->p);
        combine(mine, f->found, f->found, omega, f->s);
        combine(mine, f->r, f->s, -omega, f->t);
        double next = dot(member, mine, f->first, f->r), beta = next / rho * (alpha / omega);
        combine(mine, f->p, f->p, -omega, f->v);
        combine(mine, f->p, f->r, beta, f->p);
        rho = next;
        now = dot(member, mine, f->r, f->r);
    }
    if (member->me == 0) {
        f->iterations += iteration;
    }
}

/* The residual of the solution over the right-hand side. */
static void measure(struct member *member, struct range mine) {
    struct flow *f = member->job;
    multiply(f, mine, f->found, f->t);
    combine(mine, f->t, f->right_side, -1.0, f->t);
    double left = dot(member, mine, f->t, f->t);
    double whole = dot(member, mine, f->right_side, f->right_side);
    if (member->me == 0) {
        f->true_norm = fmax(f->true_norm, sqrt(left / whole));
    }
}

static void announce(struct member *member, const char *phase) {
    if (member->me == 0) {
        enter_phase(phase);
    }
    wait_for_all(member);
}

static void simulate(struct member *member) {
    struct flow *f = member->job;
    struct range mine = my_share(member, f->cells);
    cell **vectors[] = {&f->r, &f->first, &f->p, &f->v, &f->s, &f->t};
    for (uint64_t step = 0; step < options[STEPS].value; step++) {
        announce(member, "right side");
        right_side_phase(member);
        announce(member, "jacobian");
        jacobian_phase(member);
        announce(member, "solve");
        for (int i = 0; member->me == 0 && i < 6; i++) {
            *vectors[i] = make_solver_vector(f->cells * sizeof(cell));
        }
        for (uint64_t i = 0; member->me == 0 && options[CORRUPT].value && i < f->cells; i += 101) {
            f->blocks[0][i][0][0] += 0.5;
        }
        wait_for_all(member);
        solve(member, mine);
        measure(member, mine);
        wait_for_all(member);
        for (int i = 0; member->me == 0 && i < 6; i++) {
            give_back(*vectors[i], f->cells * sizeof(cell));
        }
        announce(member, "update");
        combine(mine, f->fields, f->fields, 0.1, f->found);
        if (member->me == 0) {
            f->step++;
        }
        wait_for_all(member);
    }
}

/* Random initial fields. */
static void beginning(uint64_t at, cell out) {
    uint64_t state = seeded(options[SEED].value, at);
    for (int m = 0; m < FIELDS; m++) {
        out[m] = random_unit(&state);
    }
}

/* How far the fields are from their initial values plus all that was to be added. */
static double farthest(const struct flow *f, uint64_t *digest) {
    double most = 0.0;
    for (uint64_t i = 0; i < f->cells; i++) {
        cell want, add;
        beginning(i, want);
        for (uint64_t step = 0; step < options[STEPS].value; step++) {
            addition(step, i, add);
            for (int m = 0; m < FIELDS; m++) {
                want[m] += 0.1 * add[m];
            }
        }
        for (int m = 0; m < FIELDS; m++) {
            most = fmax(most, fabs(f->fields[i][m] - want[m]));
            *digest = mix(*digest + bits_of(f->fields[i][m]));
        }
    }
    return most;
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    static struct flow f;
    uint64_t threads = options[THREADS].value;
    f.side = (uint64_t)cbrt((double)(options[TOTAL_MIB].value * MIB / CELL_BYTES));
    f.cells = f.side * f.side * f.side;
    if (f.side < 3 || options[STEPS].value == 0 || threads == 0 || threads > THREADS_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    f.fields = make_fields(f.cells * sizeof(cell));
    for (uint64_t i = 0; i < f.cells; i++) {
        beginning(i, f.fields[i]);
    }
    for (int b = 0; b < BLOCKS; b++) {
        f.blocks[b] = make_blocks(f.cells * sizeof(block));
    }
    f.right_side = make_right_side(f.cells * sizeof(cell));
    f.found = make_found(f.cells * sizeof(cell));
    uint64_t begun = region_begin();
    run_team(threads, simulate, &f);
    uint64_t took = region_end(begun), digest = 0;
    /* The error is at most the residual times the condition number, about 10. */
    bool right = farthest(&f, &digest) < 1e3 * TOLERANCE && f.true_norm < 10 * TOLERANCE;
    give_back(f.found, f.cells * sizeof(cell));
    give_back(f.right_side, f.cells * sizeof(cell));
    for (int b = 0; b < BLOCKS; b++) {
        give_back(f.blocks[b], f.cells * sizeof(block));
    }
    give_back(f.fields, f.cells * sizeof(cell));
    /* Two products with the blocks an iteration. */
    uint64_t operations = 2 * f.iterations * f.cells;
    struct outcome out = {"bwaves", "cell-products", operations, took, digest, right};
    return conclude(&out);
}
