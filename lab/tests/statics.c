// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// statics.c: a program whose data are static: one array that is accessed at random, two that are
// not, and shared memory that is neither. It allocates nothing.
// In: seconds to run. Out: "object NUMBER ADDRESS BYTES hot|cold" for each, "ready", then "intact".
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define HOT_BYTES (8u << 20)
#define COLD_BYTES (16u << 20)
#define SHARED_BYTES (8u << 20)

char before[COLD_BYTES], hot[HOT_BYTES], after[COLD_BYTES];

static int sum_of(const char *data, size_t bytes) {
    int sum = 0;
    for (size_t at = 0; at < bytes; at += 4096)
        sum += data[at];
    return sum;
}

int main(int argc, char **argv) {
    int fd = memfd_create("cold", MFD_CLOEXEC);
    char *shared = MAP_FAILED;
    if (fd >= 0 && !ftruncate(fd, SHARED_BYTES))
        shared = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (argc != 2 || shared == MAP_FAILED)
        return 2;
    memset(before, 1, sizeof(before));
    memset(hot, 2, sizeof(hot));
    memset(after, 3, sizeof(after));
    memset(shared, 4, SHARED_BYTES);
    printf("object 0 %p %u cold\nobject 1 %p %u hot\nobject 2 %p %u cold\nobject 3 %p %u cold\n",
           (void *)before, COLD_BYTES, (void *)hot, HOT_BYTES, (void *)after, COLD_BYTES,
           (void *)shared, SHARED_BYTES);
    printf("ready\n");
    fflush(stdout);
    time_t end = time(NULL) + atoi(argv[1]);
    uint64_t random = 88172645463325252u;
    while (time(NULL) < end)
        for (int i = 0; i < 1 << 16; i++) { // xorshift64 (Marsaglia 2003)
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            hot[random % HOT_BYTES / 64 * 64 + 1]++;
        }
    int pages = 4096;
    if (sum_of(before, COLD_BYTES) == (int)COLD_BYTES / pages &&
        sum_of(hot, HOT_BYTES) == 2 * (int)HOT_BYTES / pages &&
        sum_of(after, COLD_BYTES) == 3 * (int)COLD_BYTES / pages &&
        sum_of(shared, SHARED_BYTES) == 4 * (int)SHARED_BYTES / pages)
        printf("intact\n");
    return 0;
}
