/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * cg: conjugate gradients on a sparse symmetric matrix, in Fortran, with static arrays.
 * In: size, iterations. Out: one line; right when the equations hold.
 * Knows nothing of tiers: the matrix, 77% of its memory, is streamed; the direction is gathered.
 */
#include "workload.h"

enum { ROWS, ITERATIONS, SEED, CORRUPT };

static struct option options[] = {
    [ROWS] = {"rows", 400000, "rows of the matrix, even, 400k at most; 176 bytes each"},
    [ITERATIONS] = {"iterations", 25, "of the method; NPB has 25"},
    [SEED] = {"seed", 1, "of the matrix"},
    [CORRUPT] = {"corrupt", 0, "1: change an unknown, which the check must detect"},
};

/* What 25 iterations leave of a right side of 1 to 2, and a hundred times as much. Chosen. */
#define ERROR_MAX 1e-3

extern int32_t cg_rows_max(void);
extern void cg_make(int32_t rows, int32_t seed);
extern double cg_solve(int32_t rows, int32_t iterations);
extern double cg_error(int32_t rows, double change);

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    uint64_t most = (uint64_t)cg_rows_max(), rows = options[ROWS].value;
    if (rows < 2 || rows > most || rows % 2 != 0 || options[ITERATIONS].value > 1000000) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    cg_make((int32_t)rows, (int32_t)(options[SEED].value & INT32_MAX));
    uint64_t start = region_begin();
    double left = cg_solve((int32_t)rows, (int32_t)options[ITERATIONS].value);
    uint64_t took = region_end(start);
    double error = cg_error((int32_t)rows, (double)options[CORRUPT].value);
    struct outcome out = {.name = "cg",
                          .unit = "iterations",
                          .operations = options[ITERATIONS].value,
                          .took_ns = took,
                          .digest = mix(bits_of(left)),
                          .right = error < ERROR_MAX};
    return conclude(&out);
}
