/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_model.c: the random calls of alloc_model.c in a hosted program, while the daemon changes
 * all the time who places births, how much room there is, and which nodes are fast. In: a seed.
 * Out: one line with it, 0 when no content was lost and every object was reported.
 */
#define STEPS 15000 /* chosen: each is traced, and the page heap is asked more often */
#define main model_main
#include "alloc_model.c"
#undef main
#include "hazard.h"

#define CHANGE_MAX (16ll << 20) /* chosen: several of the largest objects */

static uint64_t random_state;

static int64_t random_room(void) {
    uint64_t random = next_random(&random_state);
    return random % 8 ? (int64_t)(random >> 8) % CHANGE_MAX : INT64_MIN >> (random >> 8) % 64;
}

static void change(struct daemon *d) {
    struct tcl_control *control = control_of(d->session[0]);
    uint64_t random = next_random(&random_state);
    control->arena_node[1] = random % 3 ? 0 : TCL_NODE_MODELLED;
    control->small_arena = random >> 2 & 1;
    control->kernel_arena = random >> 3 & 3;
    /* Node 0, the one there is everywhere, and one that does not exist. */
    control->fast_nodes = random >> 5 & 3;
    control->nursery_arena = random >> 9 & 3;
    __atomic_store_n(&control->arena_count, random >> 7 & 3, __ATOMIC_RELEASE);
    for (unsigned arena = 0; arena < 2; arena++)
        __atomic_fetch_add(&control->birth_bytes_left[arena], random_room(), __ATOMIC_RELAXED);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "hosted") == 0)
        return model_main(1, argv);
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    random_state = seed * 1000003 + 7;
    struct daemon d = {.each_turn = change};
    open_daemon(&d);
    int status = serve(&d, start_hosted(&d, "hosted"));
    CHECK(status == 0, "seed %llu, wait status %x, stderr: %s", (unsigned long long)seed, status,
          errors_of(&d));
    check_objects(d.session[0]);
    printf("track_model: contents survive any change of the control page, seed %llu\n",
           (unsigned long long)seed);
    close_daemon(&d);
    return 0;
}
