/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * sums.c: a program and a library that read and write tables of known size, for record.sh.
 */
#include <stdint.h>
#include <stdlib.h>

#define LARGE (8u << 20)
#define SMALL (512u << 10)
#define RESULT (4u << 20)

uint64_t sum_of(const uint64_t *table, size_t bytes);

#ifdef LIBRARY

uint64_t sum_of(const uint64_t *table, size_t bytes) {
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / sizeof(*table); i++)
        sum += table[i];
    return sum;
}

#else

/* Zeroed by the kernel: nothing of them is in a cache. */
__attribute__((noinline)) static uint64_t *large_table(void) {
    return calloc(1, LARGE);
}
__attribute__((noinline)) static uint64_t *small_table(void) {
    return calloc(1, SMALL);
}
__attribute__((noinline)) static uint64_t *result_table(void) {
    return calloc(1, RESULT);
}

static uint64_t own_sum_of(const uint64_t *table, size_t bytes) {
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / sizeof(*table); i += 2)
        sum += table[i] + table[i + 1];
    return sum;
}

int main(void) {
    uint64_t *large = large_table(), *small = small_table(), *result = result_table();
    uint64_t sum = sum_of(large, LARGE / 2) + own_sum_of(large + LARGE / 16, LARGE / 2);
    for (int pass = 0; pass < 50; pass++)
        sum += sum_of(small, SMALL) + own_sum_of(small, SMALL);
    for (size_t i = 0; i < RESULT / sizeof(*result); i++)
        result[i] = sum + i;
    return result[RESULT / sizeof(*result) - 1] != RESULT / sizeof(*result) - 1;
}

#endif
