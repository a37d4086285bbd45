/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * patterns.h: functions that access memory in one way each, for lines.c.
 * In: memory. Out: something that depends on all of it. Knows nothing of the probe.
 */
#ifndef PATTERNS_H
#define PATTERNS_H

#include <stddef.h>
#include <stdint.h>

struct record { /* 40 bytes: records straddle lines */
    double key, left, right;
    struct record *next;
    int64_t count;
};

double forward(const double *a, size_t n);
float forward_floats(const float *a, size_t n);
double backward(const double *a, size_t n);
double every_third(const double *a, size_t n);
double far_apart(const char *a, size_t n);
void increment(double *a, size_t n);
void triad(double *a, const double *b, const double *c, size_t n);
void accumulate(double *sum, const double *a, size_t n);
double where_set(const double *a, const unsigned char *is_set, size_t n);
size_t find(const int64_t *a, int64_t wanted, size_t n);
double fields(const struct record *a, size_t n);
int64_t chase(const struct record *first);
double gather(const double *a, const int32_t *at, size_t n);
void scatter(double *a, const int32_t *at, size_t n);
uint64_t unaligned(const char *a, size_t n);
void copy(char *to, const char *from, size_t n);
void fill(char *to, size_t n);
void assign(struct record *to, const struct record *from);
void count_up(int64_t *a, size_t n);
double columns(const double *a, size_t rows, size_t stride);

#endif
