/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_silent.c: a daemon that hosts a program, and then answers no question about its pools: the
 * program waits for it once, not at each segment, and goes on with memory of its own.
 */
#include "hazard.h"
#include "tiercel.h"

#define MIB ((size_t)1 << 20)
#define REGIONS 4

static int hosted(void) {
    for (int i = 0; i < REGIONS; i++) {
        char *region = tiercel_vregion_register(NULL, 64 * MIB, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(region != MAP_FAILED);
        region[0] = region[64 * MIB - 1] = 1;
        fork_once();
    }
    return 0;
}

static void fall_silent(struct daemon *d) {
    d->is_mute = true;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted();
    struct daemon d = {.each_turn = fall_silent};
    host(&d, argv[0]);
    CHECK(d.questions == 1, "%d questions", d.questions);
    close_daemon(&d);
    puts("vmem_silent: a daemon that does not answer is asked once");
    return 0;
}
