/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_grown.c: what a program maps and what it grows is charged to the budget like every birth:
 * nothing beyond it is born in the better arena, by mmap, by mremap, or by realloc. Address space
 * that is only reserved takes nothing of it.
 */
#include "hazard.h"

#define BUDGET (4 << 20)
#define MIB (1u << 20)

static void offer_two_arenas(struct session *s) {
    two_arenas(s, BUDGET);
    control_of(s)->birth_bytes_left[1] = (int64_t)1 << 50;
}

static void *map(size_t bytes, int rights) {
    void *p = mmap(NULL, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static int hosted(const char *part) {
    await_greeting();
    if (!strcmp(part, "maps")) {
        map(24 * MIB, PROT_READ | PROT_WRITE);
        map(2 * MIB, PROT_READ | PROT_WRITE);
    } else if (!strcmp(part, "reserves")) {
        map(MIB << 10, PROT_NONE);
        map(3 * MIB, PROT_READ | PROT_WRITE);
    } else if (!strcmp(part, "remaps")) {
        void *p = map(2 * MIB, PROT_READ | PROT_WRITE);
        CHECK(mremap(p, 2 * MIB, 20 * MIB, MREMAP_MAYMOVE) != MAP_FAILED);
    } else {
        char *p = NULL;
        for (size_t bytes = MIB; bytes <= 32 * MIB; bytes += MIB)
            CHECK((p = realloc(p, bytes)));
        hazard_sink = p;
    }
    return 0;
}

/* Bytes of large objects in the better arena, as the object table has it. */
static uint64_t better_bytes(struct session *s) {
    struct tcl_map *maps = (void *)(s->base + TCL_MAPS_AT);
    struct tcl_run *runs = (void *)(s->base + TCL_RUNS_AT);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < header_of(s)->map_high_water; i++)
        bytes += maps[i].addr && maps[i].arena == 0 ? maps[i].size : 0;
    for (uint64_t i = 0; i < header_of(s)->run_high_water; i++)
        if (runs[i].shape && (runs[i].identity >> 8 & 0xff) == 0 && !(runs[i].identity & TCL_BLOCK))
            bytes += (runs[i].shape >> 32) * 4096;
    return bytes;
}

static void check(const char *part, uint64_t least) {
    struct daemon d = {.prepare = offer_two_arenas};
    host(&d, part);
    uint64_t bytes = better_bytes(d.session[0]);
    CHECK(bytes <= BUDGET + TCL_BIRTH_CREDIT, "%s: %lu bytes of %d", part, bytes, BUDGET);
    CHECK(bytes >= least, "%s: %lu bytes, less than it has room for", part, bytes);
    close_daemon(&d);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    (void)argv;
    check("maps", 2 * MIB);
    check("reserves", 3 * MIB);
    check("remaps", 0);
    check("grows", 0);
    printf("track_grown: mapped and grown memory keeps to the budget\n");
    return 0;
}
