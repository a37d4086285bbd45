/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * phases: H2M's multi-phase benchmark (H2M IV-A): square buffers, all allocated at the start. Each
 * phase announces itself and runs a few random kernels (matrix product, dot product, axpy, stencil)
 * on random buffers.
 * In: size, buffers, phases, kernels a phase. Out: one line; right when each buffer's sum is what
 * the kernels, which are all linear in something, make of the sums before.
 * Knows nothing of tiers: a few buffers are hot in each phase, others in the next.
 */
#include "team.h"
#include <math.h>

enum { TOTAL_MIB, BUFFERS, PHASES, KERNELS, ROUNDS, ROWS, SHOW, THREADS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB of all buffers; H2M has 1318"},
    [BUFFERS] = {"buffers", 30, "buffers, 3 to 256, as H2M's"},
    [PHASES] = {"phases", 30, "phases, as H2M's"},
    [KERNELS] = {"kernels", 2, "kernels a phase, as H2M's"},
    [ROUNDS] = {"rounds", 8, "how often a kernel that is not a product runs"},
    [ROWS] = {"rows", 16, "rows of a product; 0: all, as H2M's"},
    [SHOW] = {"show", 0, "1: print each phase's buffers when it begins"},
    [THREADS] = {"threads", 1, "threads, 64 at most"},
    [SEED] = {"seed", 1, "of kernels and buffers"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt a buffer, which the check must detect"},
};

#define BUFFERS_MAX 256 /* chosen, not measured */
#define TOLERANCE 1e-9  /* of a sum: far above rounding (1e-16 by the number of its terms) */

enum kernel { PRODUCT, DOT, AXPY, STENCIL, KERNEL_KINDS };

struct run {
    uint64_t side;
    double *buffers[BUFFERS_MAX];
    /* What each buffer's values should add up to. */
    double sums[BUFFERS_MAX];
    /* The current kernel: computes z from x and y. */
    enum kernel kernel;
    uint64_t x, y, z;
    double result;
    uint64_t operations;
    bool right;
};

SITE double *make_buffer(uint64_t bytes) {
    return must_alloc(bytes);
}

/* Naive, as H2M's: the second factor is walked down its columns. */
static void product(const struct run *r, struct range mine) {
    uint64_t side = r->side;
    const double *x = r->buffers[r->x], *y = r->buffers[r->y];
    double *z = r->buffers[r->z];
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        for (uint64_t j = 0; j < side; j++) {
            double sum = 0.0;
            for (uint64_t k = 0; k < side; k++) {
                sum += x[i * side + k] * y[k * side + j];
            }
            z[i * side + j] = sum / (double)side;
        }
    }
}

static double dot(const struct run *r, struct range mine) {
    const double *x = r->buffers[r->x], *y = r->buffers[r->y];
    double sum = 0.0;
    for (uint64_t i = mine.begin * r->side; i < mine.end * r->side; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

/* A mean of both, so that values stay between 0 and 1 in any order of kernels. */
static void axpy(const struct run *r, struct range mine) {
    const double *x = r->buffers[r->x];
    double *z = r->buffers[r->z];
    for (uint64_t i = mine.begin * r->side; i < mine.end * r->side; i++) {
        z[i] = 0.875 * z[i] + 0.125 * x[i];
    }
}

/* The mean of a point and its four neighbours on a torus: what goes in comes out. */
static void stencil(const struct run *r, struct range mine) {
    uint64_t side = r->side;
    const double *x = r->buffers[r->x];
    double *z = r->buffers[r->z];
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        const double *row = x + i * side, *above = x + (i ? i - 1 : side - 1) * side;
        const double *below = x + (i + 1 < side ? i + 1 : 0) * side;
        for (uint64_t j = 0; j < side; j++) {
            double beside = row[j ? j - 1 : side - 1] + row[j + 1 < side ? j + 1 : 0];
            z[i * side + j] = 0.2 * (row[j] + beside + above[j] + below[j]);
        }
    }
}

static uint64_t rows_of_product(const struct run *r) {
    uint64_t rows = options[ROWS].value;
    return rows == 0 || rows > r->side ? r->side : rows;
}

static void work(struct member *member) {
    struct run *r = member->job;
    struct range mine = my_share(member, r->side);
    if (r->kernel == PRODUCT) {
        product(r, my_share(member, rows_of_product(r)));
        return;
    }
    for (uint64_t round = 0; round < options[ROUNDS].value; round++) {
        if (r->kernel == DOT) {
            double sum = sum_of_all(member, dot(r, mine));
            if (member->me == 0) {
                r->result = sum;
            }
        } else if (r->kernel == AXPY) {
            axpy(r, mine);
        } else {
            stencil(r, mine);
        }
        wait_for_all(member);
    }
}

static double sum_rows(const struct run *r, uint64_t buffer, struct range rows) {
    double sum = 0.0;
    for (uint64_t i = rows.begin * r->side; i < rows.end * r->side; i++) {
        sum += r->buffers[buffer][i];
    }
    return sum;
}

/* The sum of a product is that of the first factor's column sums times the second's row sums. */
static double sum_of_product(const struct run *r, uint64_t rows) {
    double total = 0.0;
    for (uint64_t k = 0; k < r->side; k++) {
        double column = 0.0, row = 0.0;
        for (uint64_t i = 0; i < rows; i++) {
            column += r->buffers[r->x][i * r->side + k];
        }
        for (uint64_t j = 0; j < r->side; j++) {
            row += r->buffers[r->y][k * r->side + j];
        }
        total += column * row;
    }
    return total / (double)r->side;
}

static bool near(double a, double b) {
    return fabs(a - b) <= TOLERANCE * (fabs(a) + fabs(b));
}

/* The kernel, and what it makes of the sums; a dot product of values below one is at most either
 * factor's sum. */
static void run_kernel(struct run *r, uint64_t threads) {
    uint64_t rows = rows_of_product(r), rounds = options[ROUNDS].value;
    uint64_t cells = r->side * r->side;
    struct range panel = {0, rows};
    if (r->kernel == PRODUCT) {
        r->sums[r->z] += sum_of_product(r, rows) - sum_rows(r, r->z, panel);
        r->operations += rows * cells;
    } else {
        r->operations += rounds * cells;
    }
    if (r->kernel == STENCIL && rounds > 0) {
        r->sums[r->z] = r->sums[r->x];
    }
    for (uint64_t i = 0; r->kernel == AXPY && i < rounds; i++) {
        r->sums[r->z] = 0.875 * r->sums[r->z] + 0.125 * r->sums[r->x];
    }
    run_team(threads, work, r);
    if (r->kernel == DOT) {
        r->right &= r->result >= 0.0 && r->result <= fmin(r->sums[r->x], r->sums[r->y]) + 1e-6;
    }
}

/* Three different buffers. */
static void choose(struct run *r, uint64_t *state) {
    uint64_t count = options[BUFFERS].value;
    r->kernel = (enum kernel)random_below(state, KERNEL_KINDS);
    r->x = random_below(state, count);
    r->y = (r->x + 1 + random_below(state, count - 1)) % count;
    do {
        r->z = random_below(state, count);
    } while (r->z == r->x || r->z == r->y);
}

static void show(const struct run *r, uint64_t bytes) {
    if (options[SHOW].value) {
        static const char *const names[] = {"product", "dot", "axpy", "stencil"};
        show_range(names[r->kernel], r->buffers[r->x], bytes);
        if (r->kernel == PRODUCT || r->kernel == DOT) {
            show_range(names[r->kernel], r->buffers[r->y], bytes);
        }
        if (r->kernel != DOT) {
            show_range(names[r->kernel], r->buffers[r->z], bytes);
        }
    }
}

static void fill(struct run *r, uint64_t bytes) {
    uint64_t state = seeded(options[SEED].value, 0);
    for (uint64_t b = 0; b < options[BUFFERS].value; b++) {
        r->buffers[b] = make_buffer(bytes);
        double sum = 0.0;
        for (uint64_t i = 0; i < r->side * r->side; i++) {
            r->buffers[b][i] = random_unit(&state);
            sum += r->buffers[b][i];
        }
        r->sums[b] = sum;
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    static struct run r = {.right = true};
    uint64_t threads = options[THREADS].value, buffers = options[BUFFERS].value;
    if (buffers < 3 || buffers > BUFFERS_MAX || threads == 0 || threads > THREADS_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    r.side = (uint64_t)sqrt((double)(options[TOTAL_MIB].value * MIB / buffers / 8));
    if (r.side < 4) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    uint64_t bytes = r.side * r.side * sizeof(double), digest = 0;
    fill(&r, bytes);
    uint64_t state = seeded(options[SEED].value, 1), begun = region_begin();
    for (uint64_t p = 0; p < options[PHASES].value; p++) {
        char name[32];
        snprintf(name, sizeof name, "phase %" PRIu64, p);
        enter_phase(name);
        for (uint64_t k = 0; k < options[KERNELS].value; k++) {
            choose(&r, &state);
            show(&r, bytes);
            run_kernel(&r, threads);
        }
    }
    uint64_t took = region_end(begun);
    r.buffers[buffers / 2][r.side] += options[CORRUPT].value ? 1.0 : 0.0;
    struct range all = {0, r.side};
    for (uint64_t b = 0; b < buffers; b++) {
        double sum = sum_rows(&r, b, all);
        r.right &= near(sum, r.sums[b]);
        digest += mix(bits_of(sum) + b);
        give_back(r.buffers[b], bytes);
    }
    struct outcome out = {"phases", "cells", r.operations, took, digest, r.right};
    return conclude(&out);
}
