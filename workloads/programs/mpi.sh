# an MPI program: four ranks, a ring of messages of growing size, a reduction
. "${0%/*}/lib.sh"
need mpicc.mpich mpiexec.mpich
cat >main.c <<'C'
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long sum = 0, all = 0;
    for (int n = 1; n < 1 << 20; n *= 4) {
        int *out = malloc(n * sizeof *out), *in = malloc(n * sizeof *in);
        for (int i = 0; i < n; i++) out[i] = i + rank;
        MPI_Sendrecv(out, n, MPI_INT, (rank + 1) % ranks, 0, in, n, MPI_INT,
                     (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < n; i++) sum += in[i];
        free(out);
        free(in);
    }
    MPI_Reduce(&sum, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks, %ld\n", ranks, all);
    MPI_Finalize();
    return 0;
}
C
mpicc.mpich -O2 main.c -o main
host mpiexec.mpich -n 4 ./main
echo "status $?"
