// A program whose hot array dies before a move could help it, beside a cold one that was there
// first. In: MiB of the cold array, MiB of the hot one, rounds. Out: `nanoseconds FIRST LAST`, the
// time of an access to the hot array in the first and in the last eighth of the rounds; `intact`
// or `damaged`. Knows nothing of nodes.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// A round takes 4 ms where an access takes 18 ns, as in guests with CXL memory.
enum { LINE_BYTES = 64, ACCESSES = 200000 };

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void *filled(size_t bytes, int byte) {
    void *array = malloc(bytes);
    if (array == NULL) {
        fputs("reborn: no memory\n", stderr);
        exit(1);
    }
    return memset(array, byte, bytes);
}

// Nanoseconds of a round; each access adds 1 to a byte.
static uint64_t run_round(size_t bytes, uint64_t *random) {
    unsigned char *hot = filled(bytes, 0), before = 0;
    uint64_t began = now_ns();
    for (int i = 0; i < ACCESSES; i++) {
        // The next place depends on what is read: nothing overlaps.
        before = hot[(next_random(random) + before) % (bytes / LINE_BYTES) * LINE_BYTES]++;
    }
    uint64_t took = now_ns() - began;
    free(hot);
    return took;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fputs("usage: reborn COLD-MIB HOT-MIB ROUNDS\n", stderr);
        return 2;
    }
    size_t cold_bytes = strtoull(argv[1], NULL, 10) << 20;
    size_t hot_bytes = strtoull(argv[2], NULL, 10) << 20;
    int rounds = atoi(argv[3]), part = rounds / 8;
    char *cold = filled(cold_bytes, 7);
    uint64_t random = 88172645463325252ull, first = 0, last = 0;
    for (int i = 0; i < rounds; i++) {
        uint64_t took = run_round(hot_bytes, &random);
        first += i < part ? took : 0;
        last += i >= rounds - part ? took : 0;
    }
    uint64_t accesses = (uint64_t)part * ACCESSES;
    printf("nanoseconds %llu %llu\n", (unsigned long long)(first / accesses),
           (unsigned long long)(last / accesses));
    for (size_t i = 0; i < cold_bytes; i++) {
        if (cold[i] != 7) {
            puts("damaged");
            return 1;
        }
    }
    puts("intact");
    return 0;
}
