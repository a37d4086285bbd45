// Two places that allocate, two phases, and a pause in each, for who looks where memory lies.
// In: a line for each pause's end. Out: `range PLACE ADDRESS BYTES` each, `in PHASE` when it is
// entered. Knows nothing of plans.
#include "../../include/tiercel.h"
#include <stdio.h>

enum { OBJECTS = 4, BYTES = 1 << 20 };

__attribute__((noinline)) static char *make_left(void) {
    return malloc(BYTES);
}

__attribute__((noinline)) static char *make_right(void) {
    return malloc(BYTES);
}

static void show(const char *place, char *memory, int value) {
    if (memory == NULL) {
        exit(3);
    }
    memset(memory, value, BYTES);
    printf("range %s %p %d\n", place, (void *)memory, BYTES);
}

static void enter(const char *phase) {
    char line[16];
    tiercel_phase(phase);
    printf("in %s\n", phase);
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) {
        exit(0);
    }
}

int main(void) {
    for (int i = 0; i < OBJECTS; i++) {
        show("left", make_left(), i);
        show("right", make_right(), i);
    }
    enter("one");
    enter("two");
    return 0;
}
