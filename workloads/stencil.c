/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * stencil: steps of diffusion on a cube by a stencil of seven points, after Parboil's stencil
 * (SPEC ACCEL 503.postencil): two grids take turns.
 * In: size, steps, who touches the grids first. Out: one line; right when the grid is what the
 * steps make of a sine along each axis, whose shape they keep.
 * Knows nothing of tiers: both grids are all of the memory, and each thread has its layers of
 * them. With init=serial one thread touches all first, so that on several sockets the others' parts
 * lie far from them.
 */
#include "team.h"
#include <math.h>

enum { TOTAL_MIB, STEPS, THREADS, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB in total"},
    [STEPS] = {"steps", 20, "time steps"},
    [THREADS] = {"threads", 1, "threads, 64 at most"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt the grid, which the check must detect"},
};

enum { INIT };

static struct text_option texts[] = {
    [INIT] = {"init", "serial", "who touches the grids first: serial (one thread) or parallel"},
};

/* Of a neighbour; the point itself keeps the rest. Stable below 1/6. */
#define SHARE 0.125
/* Waves along each axis: unequal, so that axes cannot be mixed up. */
#define WAVES_X 1
#define WAVES_Y 2
#define WAVES_Z 3
#define GRID_COUNT 2

struct cube {
    uint64_t side, cells;
    double *grids[GRID_COUNT];
    bool is_parallel;
};

SITE double *make_grid(uint64_t bytes) {
    return must_alloc(bytes);
}

/* A sine that is 0 on both faces of the cube. */
static double wave(const struct cube *c, uint64_t at, int waves) {
    return sin(M_PI * waves * (double)at / (double)(c->side - 1));
}

/* Layers `from` to before `to` of both grids, which have zeros on all faces. */
static void fill_layers(struct cube *c, uint64_t from, uint64_t to) {
    uint64_t side = c->side;
    for (uint64_t z = from; z < to; z++) {
        for (uint64_t y = 0; y < side; y++) {
            double layer = wave(c, z, WAVES_Z) * wave(c, y, WAVES_Y);
            for (uint64_t x = 0; x < side; x++) {
                uint64_t at = (z * side + y) * side + x;
                bool is_inside = x && y && z && x < side - 1 && y < side - 1 && z < side - 1;
                c->grids[0][at] = is_inside ? layer * wave(c, x, WAVES_X) : 0.0;
                c->grids[1][at] = 0.0;
            }
        }
    }
}

/* The layers that a member computes; the first and the last have the faces as well. */
static struct range my_layers(const struct member *member, uint64_t side) {
    struct range mine = my_share(member, side - 2);
    return (struct range){mine.begin + 1, mine.end + 1};
}

static void fill_share(struct member *member) {
    struct cube *c = member->job;
    if (!c->is_parallel) {
        if (member->me == 0) {
            fill_layers(c, 0, c->side);
        }
        return;
    }
    struct range mine = my_layers(member, c->side);
    bool is_last = member->me == member->of - 1;
    fill_layers(c, member->me == 0 ? 0 : mine.begin, is_last ? c->side : mine.end);
}

/* One step in a layer. */
static void step_layer(const struct cube *c, const double *old, double *new, uint64_t z) {
    uint64_t side = c->side, layer = side * side;
    for (uint64_t y = 1; y < side - 1; y++) {
        for (uint64_t x = 1; x < side - 1; x++) {
            uint64_t at = z * layer + y * side + x;
            double around = old[at - 1] + old[at + 1] + old[at - side] + old[at + side] +
                            old[at - layer] + old[at + layer];
            new[at] = (1.0 - 6.0 * SHARE) * old[at] + SHARE *around;
        }
    }
}

static void step_share(struct member *member) {
    struct cube *c = member->job;
    struct range mine = my_layers(member, c->side);
    for (uint64_t step = 0; step < options[STEPS].value; step++) {
        const double *old = c->grids[step % GRID_COUNT];
        double *new = c->grids[(step + 1) % GRID_COUNT];
        for (uint64_t z = mine.begin; z < mine.end; z++) {
            step_layer(c, old, new, z);
        }
        wait_for_all(member);
    }
}

/* What a step multiplies a sine by, less one: the loss of a wave along an axis. */
static double loss(const struct cube *c, int waves) {
    return 2.0 * SHARE * (1.0 - cos(M_PI * waves / (double)(c->side - 1)));
}

/* The largest difference from what the steps make of the sines. */
static double error_of(const struct cube *c, const double *grid) {
    double factor = 1.0 - loss(c, WAVES_X) - loss(c, WAVES_Y) - loss(c, WAVES_Z);
    double height = pow(factor, (double)options[STEPS].value), most = 0.0;
    for (uint64_t z = 1; z < c->side - 1; z++) {
        for (uint64_t y = 1; y < c->side - 1; y++) {
            double layer = height * wave(c, z, WAVES_Z) * wave(c, y, WAVES_Y);
            for (uint64_t x = 1; x < c->side - 1; x++) {
                double found = grid[(z * c->side + y) * c->side + x];
                most = fmax(most, fabs(found - layer * wave(c, x, WAVES_X)));
            }
        }
    }
    return most;
}

int main(int argc, char **argv) {
    read_all_options(argc, argv, options, sizeof options / sizeof *options, texts,
                     sizeof texts / sizeof *texts);
    static struct cube c;
    uint64_t threads = options[THREADS].value;
    c.side = (uint64_t)cbrt((double)(options[TOTAL_MIB].value * MIB / GRID_COUNT / sizeof(double)));
    c.cells = c.side * c.side * c.side;
    c.is_parallel = !strcmp(texts[INIT].value, "parallel");
    bool is_serial = !strcmp(texts[INIT].value, "serial");
    if (c.side < 8 || options[STEPS].value == 0 || threads == 0 || threads > THREADS_MAX ||
        c.is_parallel == is_serial) {
        usage_all(argv[0], options, sizeof options / sizeof *options, texts,
                  sizeof texts / sizeof *texts);
    }
    for (int grid = 0; grid < GRID_COUNT; grid++) {
        c.grids[grid] = make_grid(c.cells * sizeof(double));
    }
    run_team(threads, fill_share, &c);
    for (uint64_t i = 0; options[CORRUPT].value && i < c.cells; i += 10007) {
        c.grids[0][i] += 1.0;
    }
    uint64_t begun = region_begin();
    run_team(threads, step_share, &c);
    uint64_t took = region_end(begun), digest = 0;
    const double *grid = c.grids[options[STEPS].value % GRID_COUNT];
    for (uint64_t i = 0; i < c.cells; i++) {
        digest += mix(bits_of(grid[i]) + i);
    }
    /* Rounding adds some 1e-16 a step to values of at most 1. */
    bool right = error_of(&c, grid) < 1e-12 * (double)options[STEPS].value;
    uint64_t inner = c.side - 2, operations = options[STEPS].value * inner * inner * inner;
    for (int g = 0; g < GRID_COUNT; g++) {
        give_back(c.grids[g], c.cells * sizeof(double));
    }
    struct outcome out = {"stencil", "cells", operations, took, digest, right};
    return conclude(&out);
}
