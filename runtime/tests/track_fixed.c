/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_fixed.c: a program that is not position-independent and takes malloc's address, as Debian's
 * python3 does, seems to export malloc. Its objects are tracked all the same.
 */
// build: -no-pie -fno-pie
#include "hazard.h"

#define OBJECTS 10
#define BYTES ((size_t)300 << 10)

static int hosted(void) {
    void *(*volatile allocate)(size_t) = malloc; /* by an instruction that has the address */
    for (int i = 0; i < OBJECTS; i++)
        CHECK((hazard_sink = allocate(BYTES)));
    return 0;
}

static int objects;
static void look(struct session *s, const struct known_object *found) {
    (void)s;
    objects += found->bytes >= BYTES && found->bytes < BYTES + 4096;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted();
    struct daemon d = {0};
    host(&d, argv[0]);
    walk_table(d.session[0], look);
    CHECK(objects == OBJECTS, "%d objects", objects);
    close_daemon(&d);
    puts("track_fixed: a program at fixed addresses is tracked");
    return 0;
}
