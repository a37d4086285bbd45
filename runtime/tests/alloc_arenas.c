/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_arenas.c: objects and blocks are born in the arena that the daemon requests, each arena in
 * chunks of its own, bound to its node. In: a session whose control page names two arenas. Out: one
 * line, 0 when all are where they should be. Knows nothing of chunks.
 */
#include "hazard.h"

#define MIB (1ull << 20)
#define FAST_BYTES (8 * MIB) /* a fifth of the objects */
#define OBJECTS 40           /* of a MiB: more than the fast arena takes */

/* Less than DIRTY_MIN of heap.c, so that no purge is scheduled for it. */
#define SMALL (3 * MIB)

/* OS pages of memory that is resident, freed or not. */
static size_t resident(char *p, size_t bytes) {
    static unsigned char map[SMALL / TCL_PAGE];
    uintptr_t start = (uintptr_t)p & ~(uintptr_t)(TCL_PAGE - 1);
    CHECK(mincore((void *)start, bytes, map) == 0, "mincore");
    size_t count = 0;
    for (size_t i = 0; i < bytes / TCL_PAGE; i++)
        count += map[i] & 1;
    return count;
}

/* Before a large object is touched, free memory that is still resident on its node is purged. */
static void purge_for_large(void) {
    char *small = malloc(SMALL), *kept = small;
    memset(small, 1, SMALL);
    free(small);
    CHECK(resident(kept, SMALL) > 0, "purged at once: this test would check nothing");
    char *large = malloc(16 * MIB);
    CHECK(large && resident(kept, SMALL) == 0, "%lu", resident(kept, SMALL));
    hazard_sink = large;
}

static int hosted(void) {
    void *before = malloc(3 * MIB); /* while the kernel places: arena unknown */
    raise(SIGSTOP);                 /* the daemon writes the control page */
    for (int i = 0; i < OBJECTS; i++) {
        char *p = malloc(MIB);
        CHECK(p, "no memory");
        memset(p, i, MIB);
        hazard_sink = p;
    }
    for (int i = 0; i < 200000; i++)
        hazard_sink = malloc(100);
    purge_for_large();
    hazard_sink = before;
    return 0;
}

static uint64_t bytes_in[256], blocks_in[256], mixed_units;

static void count_entry(struct session *s, uint64_t number, const struct tcl_run *run) {
    unsigned arena = run->identity >> 8 & 0xff;
    uint64_t bytes = (run->shape >> 32) * TCL_PAGE;
    bool block = run->identity & TCL_BLOCK;
    if (block)
        blocks_in[arena]++;
    else
        bytes_in[arena] += bytes;
    (void)s;
    /* No unit of 64 MiB has objects of both arenas. */
    static uint8_t owner[1 << 14];
    uint8_t *unit = &owner[number >> 14];
    if (arena < 2) {
        mixed_units += *unit && *unit != arena + 1;
        *unit = (uint8_t)(arena + 1);
    }
}

static void count_table(struct session *s) {
    struct tcl_run *runs = (void *)(s->base + TCL_RUNS_AT);
    for (uint64_t i = 0; i < header_of(s)->run_high_water; i++) {
        if (i % 256 == 0) {
            off_t data = lseek(s->memfd, (off_t)(TCL_RUNS_AT + i * sizeof(*runs)), SEEK_DATA);
            if (data < 0)
                break;
            i = ((uint64_t)data - TCL_RUNS_AT) / sizeof(*runs);
        }
        if (runs[i].shape)
            count_entry(s, i, &runs[i]);
    }
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
    struct tcl_control *control = control_of(s);
    control->birth_bytes_left[0] = FAST_BYTES;
    control->small_arena = 0; /* its budget is used up by the objects, which come first */
    control->arena_count = 2; /* both on node 0, which every machine has */
    kill(pid, SIGCONT);
    int status = serve(&d, pid);
    CHECK(status == 0, "wait status %x, stderr: %s", status, errors_of(&d));
    check_objects(s);
    count_table(s);
    CHECK(bytes_in[0] > FAST_BYTES / 2 && bytes_in[0] <= FAST_BYTES, "%lu", bytes_in[0]);
    CHECK(bytes_in[1] >= OBJECTS * MIB - FAST_BYTES, "%lu", bytes_in[1]);
    CHECK(bytes_in[TCL_ARENA_UNKNOWN] >= 3 * MIB, "%lu", bytes_in[TCL_ARENA_UNKNOWN]);
    CHECK(blocks_in[1] > 200, "%lu blocks", blocks_in[1]);
    CHECK(blocks_in[0] < 20, "%lu blocks", blocks_in[0]);
    CHECK(mixed_units == 0, "%lu", mixed_units);
    printf("two arenas: %lu and %lu MiB of objects, %lu and %lu blocks\n", bytes_in[0] / MIB,
           bytes_in[1] / MIB, blocks_in[0], blocks_in[1]);
    close_daemon(&d);
    return 0;
}
