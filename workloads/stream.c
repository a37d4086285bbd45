/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * stream: the four kernels of McCalpin's STREAM (copy, scale, add, triad) over three arrays.
 * In: size, rounds. Out: one line; right when every element has the expected value.
 * Knows nothing of tiers.
 */
#include "workload.h"

enum { KIB, ROUNDS, SHOW, CORRUPT };

static struct option options[] = {
    [KIB] = {"kib", 65536, "KiB of each of the three arrays"},
    [ROUNDS] = {"rounds", 10, "how often the four kernels run"},
    [SHOW] = {"show", 0, "1: print the ranges of the arrays"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt an element, which the check must detect"},
};

#define SCALE 0.5 /* a power of two, so that results are exact */

static void round_of_four(double *a, double *b, double *c, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        c[i] = a[i];
    }
    for (uint64_t i = 0; i < n; i++) {
        b[i] = SCALE * c[i];
    }
    for (uint64_t i = 0; i < n; i++) {
        c[i] = a[i] + b[i];
    }
    for (uint64_t i = 0; i < n; i++) {
        a[i] = b[i] + SCALE * c[i];
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    uint64_t n = (options[KIB].value << 10) / sizeof(double);
    double *arrays[3];
    for (int k = 0; k < 3; k++) {
        arrays[k] = must_alloc(n * sizeof(double));
        for (uint64_t i = 0; i < n; i++) {
            arrays[k][i] = 1.0;
        }
        if (options[SHOW].value) {
            show_range("array", arrays[k], n * sizeof(double));
        }
    }
    uint64_t start = region_begin();
    for (uint64_t r = 0; r < options[ROUNDS].value; r++) {
        round_of_four(arrays[0], arrays[1], arrays[2], n);
    }
    uint64_t took = region_end(start);
    arrays[1][n / 2] += (double)options[CORRUPT].value;
    double a = 1.0, b = 1.0, c = 1.0;
    for (uint64_t r = 0; r < options[ROUNDS].value; r++) {
        round_of_four(&a, &b, &c, 1);
    }
    bool right = true;
    for (uint64_t i = 0; i < n; i++) {
        right &= arrays[0][i] == a && arrays[1][i] == b && arrays[2][i] == c;
    }
    for (int k = 0; k < 3; k++) {
        free(arrays[k]);
    }
    /* Ten element accesses a round: two, two, three, three. */
    return finish("stream", right, 10 * n * options[ROUNDS].value, took);
}
