# an OpenMP program: parallel loops with a reduction over arrays each thread allocates
. "${0%/*}/lib.sh"
need gcc
cat >main.c <<'C'
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    long sum = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : sum)
    for (int i = 0; i < 400; i++) {
        long n = 1000 + i * 500;
        long *values = malloc(n * sizeof *values);
        for (long k = 0; k < n; k++) values[k] = k * i % 1009;
        values = realloc(values, 2 * n * sizeof *values);
        for (long k = 0; k < n; k++) values[n + k] = values[k] + 1;
        for (long k = 0; k < 2 * n; k++) sum += values[k];
        free(values);
    }
    printf("%ld\n", sum);
    return 0;
}
C
gcc -O2 -fopenmp main.c -o main
OMP_NUM_THREADS=4 host ./main
echo "status $?"
