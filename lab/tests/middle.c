// One large object whose middle is hot, and a pause, for tests of where a plan puts it.
// In: how many accesses; a line for the pause's end. Out: `range ADDRESS BYTES` of the object.
// Knows nothing of plans.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The hot part lies at 24 to 32 of 64 MiB: in neither half's head.
enum { BYTES = 64 << 20, HOT_AT = 24 << 20, HOT_BYTES = 8 << 20, LINE = 64 };

__attribute__((noinline)) static char *make_large(void) {
    return malloc(BYTES);
}

int main(int argc, char **argv) {
    uint64_t state = 88172645463325252ull, sum = 0;
    const unsigned long accesses = argc > 1 ? strtoul(argv[1], NULL, 0) : 0;
    char line[16], *large = make_large();
    if (large == NULL) {
        return 3;
    }
    for (size_t i = 0; i < BYTES; i += 4096) {
        large[i] = 1;
    }
    for (unsigned long i = 0; i < accesses; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        volatile char *hot = large + HOT_AT + state % (HOT_BYTES / LINE) * LINE;
        sum += (uint64_t)*hot;
    }
    printf("range %p %d %d\n", (void *)large, BYTES, sum > accesses);
    fflush(stdout);
    return fgets(line, sizeof line, stdin) == NULL ? 0 : sum > accesses;
}
