/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_early.c: objects from before the runtime's constructor are in the first snapshot; births
 * and deaths after main, in destructors and atexit functions, are still recorded.
 */
#include "hazard.h"

static void *early, *early_map, *late;

static void before_everything(int argc, char **argv, char **env) {
    (void)argc, (void)argv, (void)env;
    early = malloc(777 * 4096);
    early_map = mmap(NULL, 555 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
__attribute__((section(".preinit_array"), used)) static void (*first)(int, char **,
                                                                      char **) = before_everything;

__attribute__((destructor(101))) static void after_everything(void) {
    free(early);
    late = malloc(999 * 4096);
    hazard_sink = late;
}

static void at_exit(void) {
    churn(100, 5);
}

static int early_in_snapshot, late_in_table;
static void look(struct session *s, const struct known_object *found) {
    (void)s;
    late_in_table += found->bytes == 999 * 4096;
    early_in_snapshot += found->bytes == 555 * 4096;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return atexit(at_exit);
    (void)argv;
    struct daemon d = {0};
    host(&d, "hosted");
    struct session *s = d.session[0];
    walk_table(s, look);
    CHECK(early_in_snapshot == 1, "the mapping from before the constructor");
    CHECK(late_in_table == 1, "the object from after main");
    CHECK(s->kinds[TCL_DIED] > 0, "the early object died");
    printf("track_early: known from before the constructor, until after main\n");
    close_daemon(&d);
    return 0;
}
