/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_numbered.c: the first large objects of a site have sites of their own by their number, the
 * same in every run; later and small objects, and those of other sites, have not.
 */
#include "hazard.h"

#define NUMBERED 3
#define OBJECTS 5
#define LARGE ((size_t)TCL_NUMBERED_BYTES)

__attribute__((noinline)) static void make(size_t bytes) {
    hazard_sink = malloc(bytes);
}

static int hosted(void) {
    for (int i = 0; i < 2 * OBJECTS; i++)
        make(i % 2 ? LARGE / 2 : LARGE);
    return 0;
}

static void number(struct session *s) {
    control_of(s)->numbered_births = NUMBERED;
}

static uint32_t live_at[TCL_SITES_MAX];
static void count(struct session *s, const struct known_object *found) {
    (void)s;
    if (found->bytes >= LARGE / 2)
        live_at[found->site]++;
}

/* Hashes of the sites of large objects, by number; 0 holds that of all others. */
static void look(uint64_t hashes[NUMBERED + 1]) {
    struct daemon d = {.prepare = number};
    host(&d, "hosted");
    struct session *s = d.session[0];
    struct tcl_site *sites = (void *)(s->base + TCL_SITES_AT);
    memset(live_at, 0, sizeof(live_at));
    walk_table(s, count);
    memset(hashes, 0, (NUMBERED + 1) * sizeof(*hashes));
    for (uint32_t i = 1; i < header_of(s)->site_count; i++) {
        if (!live_at[i] || sites[i].kind != TCL_SITE_CALL)
            continue;
        uint64_t last = sites[i].frames[sites[i].frame_count - 1];
        uint64_t place = last >> 48 == TCL_NO_MODULE ? last & 0xffff : 0;
        CHECK(place <= NUMBERED && !hashes[place], "place %lu", place);
        CHECK(live_at[i] == (place ? 1 : 2 * OBJECTS - NUMBERED), "%lu: %u", place, live_at[i]);
        hashes[place] = sites[i].hash;
    }
    close_daemon(&d);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1)
        return hosted();
    uint64_t first[NUMBERED + 1], again[NUMBERED + 1];
    look(first);
    look(again);
    for (int i = 0; i <= NUMBERED; i++)
        CHECK(first[i] && first[i] == again[i], "%d: %lx, then %lx", i, first[i], again[i]);
    puts("track_numbered: large objects of a site by number, the same in another run");
    return 0;
}
