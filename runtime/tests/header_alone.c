/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * header_alone.c: tiercel.h without the runtime: phases do nothing, memory is malloc's.
 * In: nothing. Out: one line, 0 when all hold. Knows nothing of libtiercel.so.
 */
#include "tiercel.h"
#include <malloc.h>
#include <stdio.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

int main(void) {
    struct tiercel_traits traits = {.space = TIERCEL_HIGH_BANDWIDTH};
    CHECK(!tiercel_is_hosted());
    tiercel_phase("ignored");
    tiercel_set_strategy(NULL, NULL);
    char *plain = tiercel_alloc(100000, &traits), *aligned = tiercel_aligned_alloc(4096, 5, NULL);
    CHECK(plain && malloc_usable_size(plain) >= 100000);
    CHECK(aligned && (uintptr_t)aligned % 4096 == 0);
    memset(plain, 1, 100000);
    tiercel_free(plain);
    char *cold = tiercel_malloc_class(100, TIERCEL_COLD);
    CHECK(cold && malloc_usable_size(cold) >= 100);
    free(cold);
    free(aligned);
    puts("tiercel.h without the runtime: malloc's memory, no phases");
    return 0;
}
