/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * digest.c: a program whose output depends on everything that it computes: threads, floating point,
 * recursion, variable arguments, jumps, vectors. Compiled plainly and with the plug-in.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIDE 96

typedef float four __attribute__((vector_size(16)));

static double grid[SIDE][SIDE];
static _Thread_local unsigned own[2048];
static jmp_buf back;

static unsigned sum_of(int count, ...) {
    va_list list;
    va_start(list, count);
    unsigned sum = 0;
    while (count--)
        sum = sum * 31 + va_arg(list, unsigned);
    va_end(list);
    return sum;
}

static unsigned depth(unsigned n, char *above) {
    char here[5000];
    memset(here, (int)n, sizeof(here));
    return n ? depth(n - 1, here) + (unsigned char)above[n] : (unsigned)here[7];
}

static void *stencil(void *rows) {
    size_t first = (size_t)rows;
    for (size_t i = 0; i < 2048; i++)
        own[i] = (unsigned)(i * first);
    for (int step = 0; step < 5; step++)
        for (size_t i = first + 1; i < first + SIDE / 2 - 1; i++)
            for (size_t j = 1; j < SIDE - 1; j++)
                grid[i][j] = 0.4 * (grid[i - 1][j] + grid[i + 1][j]) + sqrt(own[j]);
    return NULL;
}

static int by_value(const void *a, const void *b) {
    unsigned left = *(const unsigned *)a, right = *(const unsigned *)b;
    return (left > right) - (left < right);
}

static unsigned sorted(size_t n) {
    unsigned *all = malloc(n * sizeof(*all)), hash = 5381;
    for (size_t i = 0; i < n; i++)
        all[i] = (unsigned)(i * 2654435761u) >> 7;
    qsort(all, n, sizeof(*all), by_value);
    for (size_t i = 0; i < n; i++)
        hash = hash * 33 ^ all[i];
    free(all);
    return hash;
}

static float vectors(size_t n) {
    four *all = aligned_alloc(16, n * sizeof(*all)), sum = {0, 0, 0, 0};
    for (size_t i = 0; i < n; i++)
        all[i] = (four){(float)i, 1, (float)(i % 7), 2};
    for (size_t i = 0; i < n; i++)
        sum += all[i] * all[n - 1 - i];
    free(all);
    return sum[0] + sum[1] + sum[2] + sum[3];
}

static void leave(volatile int *count) {
    if (++*count < 3)
        longjmp(back, *count);
}

int main(void) {
    for (size_t i = 0; i < SIDE; i++)
        for (size_t j = 0; j < SIDE; j++)
            grid[i][j] = (double)(i * 7 + j * 3 % 11);
    pthread_t threads[2];
    for (size_t n = 0; n < 2; n++)
        pthread_create(&threads[n], NULL, stencil, (void *)(n * SIDE / 2));
    for (size_t n = 0; n < 2; n++)
        pthread_join(threads[n], NULL);
    double total = 0;
    for (size_t i = 0; i < SIDE; i++)
        for (size_t j = 0; j < SIDE; j++)
            total = total * 0.99 + grid[i][j];
    volatile int count = 0;
    setjmp(back);
    leave(&count);
    char top[64] = "abcdefghijklmnopqrstuvwxyz";
    printf("%.17g %u %u %u %.9g %d\n", total, sum_of(4, 1u, 2u, 3u, 4u), depth(20, top),
           sorted(10007), (double)vectors(1001), count);
    return 0;
}
