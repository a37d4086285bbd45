/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_silent.c: a daemon that hosts a program, and then answers no question about its pools: the
 * program waits for it once, not at each segment, and goes on with memory of its own. A thread that
 * forks does not wait for the answer to another thread's question, and what is returned waits for
 * none.
 */
#include "hazard.h"
#include "tiercel.h"
#include <stdatomic.h>

#define MIB ((size_t)1 << 20)
#define REGIONS 4
#define RW (PROT_READ | PROT_WRITE)

static char *new_region(void) {
    char *region =
        tiercel_vregion_register(NULL, 64 * MIB, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(region != MAP_FAILED);
    region[0] = region[64 * MIB - 1] = 1;
    return region;
}

static _Atomic bool is_done;

static void *fork_until_done(void *nothing) {
    do
        fork_once();
    while (!atomic_load(&is_done));
    return nothing;
}

static int hosted(const char *part) {
    char *regions[REGIONS];
    pthread_t thread;
    bool is_beside = !strcmp(part, "beside");
    if (is_beside)
        CHECK(!pthread_create(&thread, NULL, fork_until_done, NULL));
    for (int i = 0; i < REGIONS; i++) {
        regions[i] = new_region();
        if (!is_beside && strcmp(part, "returned"))
            fork_once();
    }
    for (int i = 0; i < REGIONS; i++)
        CHECK(!tiercel_vregion_release(regions[i], 64 * MIB));
    atomic_store(&is_done, true);
    CHECK(!is_beside || !pthread_join(thread, NULL));
    return 0;
}

static void fall_silent(struct daemon *d) {
    d->is_mute = true;
}

static void run(const char *part, bool grants, int questions) {
    struct daemon d = {.each_turn = fall_silent, .grants = grants};
    host(&d, part);
    /* What the program said last, and did not wait for. */
    for (struct pollfd next = {d.listener, POLLIN, 0}; poll(&next, 1, 0) == 1;)
        accept_session(&d);
    CHECK(d.questions == questions, "%s: %d questions", part, d.questions);
    close_daemon(&d);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    run("alone", false, 1);
    /* Each question ends when the other thread forks, which says nothing about the daemon. */
    run("beside", false, REGIONS);
    /* A wait for an answer to a return would make the daemon a silent one, which is not asked. */
    run("returned", true, 2 * REGIONS);
    puts("vmem_silent: a daemon that does not answer is asked once, and no fork waits for it");
    return 0;
}
