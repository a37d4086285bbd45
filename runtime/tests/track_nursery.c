/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_nursery.c: a nursery is charged by births of the sites whose rows name it, and by no
 * others; deaths give its room back; what finds no room there is as if it had no row.
 * In: a session whose plan and budgets the test fills while the program is stopped.
 */
#include "hazard.h"

#define MIB (1ll << 20)
#define LARGE ((size_t)MIB) /* more than a thread takes ahead, so that budgets are exact */
#define ROOM 4              /* objects that the nursery has room for */
#define FAST 0
#define NURSERY 1
#define SLOW 2

static void *kept[2 * ROOM];

__attribute__((noinline)) static void nursed(int count) {
    for (int i = 0; i < count; i++)
        kept[i] = malloc(LARGE);
}

__attribute__((noinline)) static void others(int count) {
    for (int i = 0; i < count; i++)
        kept[ROOM + i] = malloc(LARGE);
}

static void free_all(void) {
    for (int i = 0; i < 2 * ROOM; i++)
        free(kept[i]), kept[i] = NULL;
}

/* What lived is freed, and so many objects are born; before the next the program stops. All by one
 * call each, so that stacks are the same. */
static const struct round {
    int nursed, others;
} rounds[] = {
    {1, 0},    /* from now on its site is known: the last */
    {0, ROOM}, /* none of the nursery's room */
    {ROOM, 0}, /* all of it */
    {0, 0},    /* given back */
    {ROOM, 1}, /* each in its own */
    {ROOM, 0}, /* more than there is room for */
    {0, 1},    /* larger than what the fast arena has: a head of it */
};
#define ROUNDS (int)(sizeof(rounds) / sizeof(*rounds))

static int hosted(void) {
    for (int i = 0; i < ROUNDS; i++) {
        free_all();
        nursed(rounds[i].nursed);
        others(rounds[i].others);
        if (i + 1 < ROUNDS)
            raise(SIGSTOP);
    }
    return 0;
}

static void write_plan(struct session *s) {
    struct tcl_control *control = control_of(s);
    struct tcl_site *sites = (void *)(s->base + TCL_SITES_AT);
    struct tcl_plan_row row = {
        .site = sites[header_of(s)->site_count - 1].hash,
        .size_class = TCL_PLAN_CLASS_ANY,
        .arena = NURSERY,
        .share = TCL_PLAN_SHARE_ALL,
    };
    memcpy(s->base + TCL_PLAN_AT + TCL_PLAN_ROWS_MAX * sizeof(row), &row, sizeof(row));
    control->unplanned_arena = TCL_ARENA_UNKNOWN;
    control->nursery_arena = 1 + NURSERY;
    /* The first two on node 0, the one there is everywhere; parts of the last are other mappings.
     */
    control->arena_node[SLOW] = TCL_NODE_MODELLED;
    control->arena_count = 3;
    __atomic_store_n(&control->plan, 1ull << 32 | 1, __ATOMIC_RELEASE);
}

static void set_left(struct session *s, int64_t fast, int64_t nursery) {
    control_of(s)->birth_bytes_left[FAST] = fast;
    control_of(s)->birth_bytes_left[NURSERY] = nursery;
    control_of(s)->birth_bytes_left[SLOW] = 0;
}

static void go_on(struct session *s, pid_t pid, const char *what, int64_t fast, int64_t nursery) {
    kill(pid, SIGCONT);
    wait_stop(pid);
    int64_t *left = control_of(s)->birth_bytes_left;
    CHECK(left[FAST] == fast && left[NURSERY] == nursery, "%s: %ld and %ld of %ld and %ld left",
          what, left[FAST], left[NURSERY], fast, nursery);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1)
        return hosted();
    struct daemon d = {0};
    open_daemon(&d);
    pid_t pid = start_hosted(&d, "hosted");
    struct session *s = first_session(&d);
    wait_stop(pid);
    write_plan(s);
    set_left(s, 0, ROOM * MIB);
    go_on(s, pid, "births of other sites", 0, ROOM * MIB);
    go_on(s, pid, "births of the site", 0, 0);
    go_on(s, pid, "deaths", 0, ROOM * MIB);
    set_left(s, MIB, ROOM * MIB);
    go_on(s, pid, "births of both", 0, 0);
    set_left(s, 0, (1 - ROOM) * MIB); /* what dies first leaves room for one in each */
    go_on(s, pid, "more births than there is room for", 0, 0);
    set_left(s, -MIB / 2, 0);
    kill(pid, SIGCONT);
    int status = serve(&d, pid);
    CHECK(status == 0, "wait status %x, stderr: %s", status, errors_of(&d));
    check_objects(s);
    printf("track_nursery: births of its sites alone take its room, and deaths give it back\n");
    close_daemon(&d);
    return 0;
}
