# an OpenMP program of clang's: arrays in predefined and own memory spaces, per thread and shared
. "${0%/*}/lib.sh"
need clang
cat >main.c <<'C'
#include <omp.h>
#include <stdio.h>
#include <string.h>
static long use(omp_allocator_handle_t where, long n) {
    long sum = 0, *values = omp_alloc(n * sizeof *values, where);
    if (!values) return use(omp_default_mem_alloc, n); /* libomp without memkind has no spaces */
    for (long k = 0; k < n; k++) values[k] = k % 1009;
    for (long k = 0; k < n; k++) sum += values[k];
    omp_free(values, where);
    return sum;
}
int main(void) {
    omp_alloctrait_t traits[] = {{omp_atk_alignment, 4096}, {omp_atk_fallback, omp_atv_null_fb}};
    omp_allocator_handle_t own = omp_init_allocator(omp_default_mem_space, 2, traits);
    omp_allocator_handle_t all[] = {omp_default_mem_alloc, omp_high_bw_mem_alloc,
                                    omp_large_cap_mem_alloc, own};
    long sum = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : sum)
    for (int i = 0; i < 400; i++) sum += use(all[i % 4], 1000 + i * 500);
    omp_destroy_allocator(own);
    printf("%ld\n", sum);
    return 0;
}
C
clang -O2 -fopenmp main.c -o main 2>/dev/null || { echo "missing: libomp-dev" >&2; exit 77; }
OMP_NUM_THREADS=4 host ./main
echo "status $?"
