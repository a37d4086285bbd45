/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * block5.h: five unknowns per cell, as in compressible flow, and their coupling.
 * In: a cell's values. Out: 5 x 5 blocks, products and solutions.
 * Knows nothing of grids.
 */
#ifndef BLOCK5_H
#define BLOCK5_H

#include "workload.h"
#include <math.h>

#define FIELDS 5 /* density, three of momentum, energy */
typedef double block[FIELDS][FIELDS];

/* How strongly field `to` is driven along `axis` by field `from`: at most 0.2, no two axes alike.
 */
#define COUPLING(axis, to, from) (0.04 * (((to)*3 + (from)*5 + (axis)*7) % 11 - 5))
#define COUPLING_ROW(axis, to)                                                                     \
    {                                                                                              \
        COUPLING(axis, to, 0), COUPLING(axis, to, 1), COUPLING(axis, to, 2),                       \
            COUPLING(axis, to, 3), COUPLING(axis, to, 4)                                           \
    }
#define COUPLING_BLOCK(axis)                                                                       \
    {                                                                                              \
        COUPLING_ROW(axis, 0), COUPLING_ROW(axis, 1), COUPLING_ROW(axis, 2),                       \
            COUPLING_ROW(axis, 3), COUPLING_ROW(axis, 4)                                           \
    }
static const block couplings[3] = {COUPLING_BLOCK(0), COUPLING_BLOCK(1), COUPLING_BLOCK(2)};

/* 1 / sqrt(1 + mean square): how the strength falls where values are large. */
static inline double inverse_speed(const double u[FIELDS]) {
    double square = 0.0;
    for (int m = 0; m < FIELDS; m++) {
        square += u[m] * u[m];
    }
    return 1.0 / sqrt(1.0 + square / FIELDS);
}

/* The flux's slope along `axis` at values `u`, whose inverse speed is `slow`. */
static inline void flux_slope(int axis, const double u[FIELDS], double slow, block out) {
    for (int m = 0; m < FIELDS; m++) {
        for (int k = 0; k < FIELDS; k++) {
            out[m][k] = slow * couplings[axis][m][k];
        }
        out[m][m] += 0.05 * u[axis + 1];
    }
}

/* out += factor x a x v. */
static inline void add_product(const block a, const double v[FIELDS], double factor,
                               double out[FIELDS]) {
    for (int m = 0; m < FIELDS; m++) {
        double sum = 0.0;
        for (int k = 0; k < FIELDS; k++) {
            sum += a[m][k] * v[k];
        }
        out[m] += factor * sum;
    }
}

/* out -= a x b. */
static inline void subtract_product(const block a, const block b, block out) {
    for (int m = 0; m < FIELDS; m++) {
        for (int k = 0; k < FIELDS; k++) {
            double sum = 0.0;
            for (int i = 0; i < FIELDS; i++) {
                sum += a[m][i] * b[i][k];
            }
            out[m][k] -= sum;
        }
    }
}

/* Gauss without pivots, for blocks whose diagonal dominates: b and v become a^-1 b and a^-1 v; a
 * is overwritten. */
static inline void solve_block(block a, block b, double v[FIELDS]) {
    for (int p = 0; p < FIELDS; p++) {
        double pivot = 1.0 / a[p][p];
        for (int k = p + 1; k < FIELDS; k++) {
            a[p][k] *= pivot;
        }
        for (int k = 0; k < FIELDS; k++) {
            b[p][k] *= pivot;
        }
        v[p] *= pivot;
        for (int m = 0; m < FIELDS; m++) {
            double factor = a[m][p];
            if (m == p) {
                continue;
            }
            for (int k = p + 1; k < FIELDS; k++) {
                a[m][k] -= factor * a[p][k];
            }
            for (int k = 0; k < FIELDS; k++) {
                b[m][k] -= factor * b[p][k];
            }
            v[m] -= factor * v[p];
        }
    }
}

#endif
