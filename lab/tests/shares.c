// A program whose misses are known by construction, by allocation site. Each walk touches lines
// that no cache has any more; two sites take turns at one address, and only one of them is walked.
// In: nothing. Out: nothing. Knows nothing of who counts.
#include <stdlib.h>

enum {
    MIB = 1 << 20,
    LARGE = 16 * MIB,
    TURN = 8 * MIB,
    TURNS = 4,
    LINE = 64,
    OS_PAGE = 4096,
    STEPS = 60000,
};

static volatile unsigned char sink;

// A store to each OS page: pages that were never written share one of zeroes.
static unsigned char *touched(unsigned char *memory, size_t bytes) {
    if (memory == NULL) {
        exit(3);
    }
    for (size_t at = 0; at < bytes; at += OS_PAGE) {
        memory[at] = 1;
    }
    return memory;
}

__attribute__((noinline)) static unsigned char *make_six(void) {
    return malloc(LARGE);
}

__attribute__((noinline)) static unsigned char *make_three(void) {
    return malloc(LARGE);
}

__attribute__((noinline)) static unsigned char *make_one(void) {
    return malloc(LARGE);
}

__attribute__((noinline)) static unsigned char *make_walked(void) {
    return malloc(TURN);
}

__attribute__((noinline)) static unsigned char *make_idle(void) {
    return malloc(TURN);
}

static void walk(unsigned char *memory, size_t bytes, size_t from, size_t lines) {
    for (size_t line = from; line < from + lines; line++) {
        sink = memory[line * LINE % bytes];
    }
}

// Six lines of one array, three of another, one of a third.
static void walk_all(unsigned char *six, unsigned char *three, unsigned char *one) {
    for (size_t step = 0; step < STEPS; step++) {
        walk(six, LARGE, 6 * step, 6);
        walk(three, LARGE, 3 * step, 3);
        walk(one, LARGE, step, 1);
    }
}

int main(void) {
    unsigned char *one = touched(make_one(), LARGE), *three = touched(make_three(), LARGE);
    unsigned char *six = touched(make_six(), LARGE);
    walk_all(six, three, one);
    for (int turn = 0; turn < TURNS; turn++) {
        unsigned char *walked = touched(make_walked(), TURN);
        walk(walked, TURN, 0, TURN / LINE);
        free(walked);
        free(touched(make_idle(), TURN));
    }
    return 0;
}
