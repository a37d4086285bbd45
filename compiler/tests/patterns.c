/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * patterns.c: see patterns.h. Compiled with the plug-in.
 */
#include "patterns.h"
#include <string.h>

double forward(const double *a, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i];
    return sum;
}

float forward_floats(const float *a, size_t n) {
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = a[i] > most ? a[i] : most;
    return most;
}

double backward(const double *a, size_t n) {
    double sum = 0;
    for (size_t i = n; i-- > 0;)
        sum = sum / 2 + a[i];
    return sum;
}

double every_third(const double *a, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i += 3)
        sum += a[i];
    return sum;
}

double far_apart(const char *a, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i += 200)
        sum += a[i];
    return sum;
}

void increment(double *a, size_t n) {
    for (size_t i = 0; i < n; i++)
        a[i] += 1;
}

void triad(double *a, const double *b, const double *c, size_t n) {
    for (size_t i = 0; i < n; i++)
        a[i] = b[i] + 3 * c[i];
}

/* The sum may be one of the numbers. */
void accumulate(double *sum, const double *a, size_t n) {
    for (size_t i = 0; i < n; i++)
        *sum += a[i];
}

double where_set(const double *a, const unsigned char *is_set, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        if (is_set[i])
            sum += a[i];
    return sum;
}

size_t find(const int64_t *a, int64_t wanted, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (a[i] == wanted)
            return i;
    return n;
}

double fields(const struct record *a, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i].key * a[i].right + (double)a[i].count;
    return sum;
}

int64_t chase(const struct record *first) {
    int64_t sum = 0;
    for (; first; first = first->next)
        sum += first->count;
    return sum;
}

double gather(const double *a, const int32_t *at, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[at[i]];
    return sum;
}

void scatter(double *a, const int32_t *at, size_t n) {
    for (size_t i = 0; i < n; i++)
        a[at[i]] = 1;
}

uint64_t unaligned(const char *a, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i + 8 <= n; i += 509) {
        uint64_t word;
        memcpy(&word, a + i, sizeof(word));
        sum += word;
    }
    return sum;
}

void copy(char *to, const char *from, size_t n) {
    memcpy(to, from, n);
}

void fill(char *to, size_t n) {
    memset(to, 1, n);
}

void assign(struct record *to, const struct record *from) {
    *to = *from;
}

void count_up(int64_t *a, size_t n) {
    for (size_t i = 0; i < n; i++)
        __atomic_fetch_add(&a[i], 1, __ATOMIC_RELAXED);
}

double columns(const double *a, size_t rows, size_t stride) {
    double sum = 0;
    for (size_t column = 0; column < 4; column++)
        for (size_t row = 0; row < rows; row++)
            sum += a[row * stride + column];
    return sum;
}
