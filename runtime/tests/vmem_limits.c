/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_limits.c: vregions move, or stay, and nobody waits for ever, while a process has as many
 * mappings as it may: each step of a move is the one that fails, as room is left for one more.
 */
#include "check.h"
#include "tiercel.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MIB ((size_t)1 << 20)
#define PAPER 900
#define BYTES (3 * MIB)
#define OS_PAGE ((size_t)4096)
#define FILL_PAGES ((size_t)1 << 18) /* two mappings each: more than any usual limit */
#define ROOM_MAX 24                  /* more mappings than a move needs */
#define SPARE 64                     /* enough for a thread, a region, a child */
#define WAIT_S 30

static char *fill;
static size_t filled; /* OS pages of `fill` with rights of their own */

/* Every second OS page gets rights: two mappings more each time. */
static bool take_mappings(void) {
    char *at = fill + (2 * filled + 1) * OS_PAGE;
    if (2 * filled + 2 >= FILL_PAGES || mprotect(at, OS_PAGE, PROT_READ))
        return false;
    filled++;
    return true;
}

static void give_mappings(void) {
    filled--;
    CHECK(!mprotect(fill + (2 * filled + 1) * OS_PAGE, OS_PAGE, PROT_NONE));
}

struct toucher {
    char *region;
    _Atomic bool is_over;
    _Atomic uint64_t laps;
};

/* The first word of each OS page only grows. */
static void *touch(void *argument) {
    struct toucher *toucher = argument;
    for (uint64_t lap = 1; !atomic_load(&toucher->is_over); lap++) {
        for (size_t at = 0; at < BYTES; at += OS_PAGE) {
            _Atomic uint64_t *word = (void *)(toucher->region + at);
            uint64_t found = atomic_fetch_add(word, 1);
            CHECK(found == lap - 1, "%zx: %lu in lap %lu", at, found, lap);
        }
        atomic_store(&toucher->laps, lap);
    }
    return NULL;
}

static void see(const char *region) {
    for (size_t at = 8; at < BYTES; at += 8)
        CHECK(at % OS_PAGE == 0 || region[at] == (char)(at / 8 * 7), "%zx", at);
}

/* Whoever moved, or not: somebody else still reads and writes all of it. */
static void await_laps(struct toucher *toucher) {
    uint64_t seen = atomic_load(&toucher->laps);
    alarm(WAIT_S);
    while (atomic_load(&toucher->laps) < seen + 2)
        ;
    alarm(0);
}

static void move_with(size_t room, bool forked) {
    struct toucher toucher = {0};
    pthread_t thread;
    int moves = 0, node = PAPER;
    toucher.region = tiercel_vregion_register(NULL, BYTES, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(toucher.region != MAP_FAILED);
    for (size_t at = 0; at < BYTES; at += 8)
        toucher.region[at] = at % OS_PAGE ? (char)(at / 8 * 7) : 0;
    CHECK(!tiercel_vregion_migrate(toucher.region + MIB, OS_PAGE * 3, node)); /* several runs */
    if (forked)
        fork_once();
    CHECK(!pthread_create(&thread, NULL, touch, &toucher));
    while (take_mappings())
        ;
    for (size_t i = 0; i < room; i++)
        give_mappings();
    for (int i = 0; i < 2; i++, node = node == PAPER ? 0 : PAPER) {
        int failed = tiercel_vregion_migrate(toucher.region, BYTES, node);
        moves += !failed;
        CHECK(!failed || errno == ENOMEM || errno == EBUSY || errno == EMFILE, "with %zu", room);
        await_laps(&toucher);
    }
    CHECK(room < ROOM_MAX || moves == 2, "%d moves", moves);
    for (size_t i = 0; i < SPARE; i++)
        give_mappings();
    see(toucher.region);
    CHECK(!tiercel_vregion_migrate(toucher.region, BYTES, PAPER));
    see(toucher.region);
    atomic_store(&toucher.is_over, true);
    pthread_join(thread, NULL);
    CHECK(!tiercel_vregion_release(toucher.region, BYTES));
}

int main(void) {
    fill = mmap(NULL, FILL_PAGES * OS_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
    CHECK(fill != MAP_FAILED && !madvise(fill, FILL_PAGES * OS_PAGE, MADV_DONTFORK));
    while (take_mappings())
        ;
    for (size_t i = 0; i < SPARE; i++)
        give_mappings();
    for (size_t room = 0; room <= ROOM_MAX; room++) {
        move_with(room, false);
        move_with(room, true);
    }
    puts("vregions: moved or left alone with as many mappings as a process may have");
    return 0;
}
