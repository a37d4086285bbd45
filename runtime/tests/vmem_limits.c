/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_limits.c: with as many mappings as a process may have, vregions move or the move fails, and
 * no thread waits for ever. Each round leaves room for one mapping more, so that each step fails
 * once.
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
#define ABSENT_NODE 900 /* no machine has this node */
#define BYTES (3 * MIB) /* more than a piece */
#define OS_PAGE ((size_t)4096)
#define FILL_PAGES ((size_t)1 << 18) /* two mappings each: more than any usual limit */
#define ROOM_MAX 24                  /* more mappings than a move needs */
#define SPARE 64                     /* enough for a thread, a region, a child */

static char *fill;
static size_t filled; /* OS pages of `fill` with rights of their own */

/* Gives every second OS page other rights, which adds two mappings each time. */
static bool add_mappings(void) {
    char *at = fill + (2 * filled + 1) * OS_PAGE;
    if (2 * filled + 2 >= FILL_PAGES || mprotect(at, OS_PAGE, PROT_READ))
        return false;
    filled++;
    return true;
}

static void remove_mappings(void) {
    filled--;
    CHECK(!mprotect(fill + (2 * filled + 1) * OS_PAGE, OS_PAGE, PROT_NONE));
}

struct toucher {
    char *region;
    _Atomic bool is_over;
    _Atomic uint64_t passes;
};

/* The first word of each OS page only grows. */
static void *touch(void *argument) {
    struct toucher *toucher = argument;
    for (uint64_t pass = 1; !atomic_load(&toucher->is_over); pass++) {
        for (size_t at = 0; at < BYTES; at += OS_PAGE) {
            _Atomic uint64_t *word = (void *)(toucher->region + at);
            uint64_t found = atomic_fetch_add(word, 1);
            CHECK(found == pass - 1, "%zx: %lu in pass %lu", at, found, pass);
        }
        atomic_store(&toucher->passes, pass);
    }
    return NULL;
}

static void check_content(const char *region) {
    for (size_t at = 8; at < BYTES; at += 8)
        CHECK(at % OS_PAGE == 0 || region[at] == (char)(at / 8 * 7), "%zx", at);
}

/* The other thread still reads and writes all of it. */
static void await_passes(struct toucher *toucher) {
    uint64_t seen = atomic_load(&toucher->passes);
    alarm(HANG_S);
    while (atomic_load(&toucher->passes) < seen + 2)
        ;
    alarm(0);
}

static void move_with(size_t room, bool forked) {
    struct toucher toucher = {0};
    pthread_t thread;
    int moves = 0, node = ABSENT_NODE;
    toucher.region = tiercel_vregion_register(NULL, BYTES, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(toucher.region != MAP_FAILED);
    for (size_t at = 0; at < BYTES; at += 8)
        toucher.region[at] = at % OS_PAGE ? (char)(at / 8 * 7) : 0;
    CHECK(!tiercel_vregion_migrate(toucher.region + MIB, OS_PAGE * 3, node)); /* several runs */
    if (forked)
        fork_once();
    CHECK(!pthread_create(&thread, NULL, touch, &toucher));
    while (add_mappings())
        ;
    for (size_t i = 0; i < room; i++)
        remove_mappings();
    for (int i = 0; i < 2; i++, node = node == ABSENT_NODE ? 0 : ABSENT_NODE) {
        int failed = tiercel_vregion_migrate(toucher.region, BYTES, node);
        moves += !failed;
        CHECK(!failed || errno == ENOMEM || errno == EBUSY || errno == EMFILE, "with %zu", room);
        await_passes(&toucher);
    }
    CHECK(room < ROOM_MAX || moves == 2, "%d moves", moves);
    for (size_t i = 0; i < SPARE; i++)
        remove_mappings();
    check_content(toucher.region);
    CHECK(!tiercel_vregion_migrate(toucher.region, BYTES, ABSENT_NODE));
    check_content(toucher.region);
    atomic_store(&toucher.is_over, true);
    pthread_join(thread, NULL);
    CHECK(!tiercel_vregion_release(toucher.region, BYTES));
}

int main(void) {
    fill = mmap(NULL, FILL_PAGES * OS_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
    CHECK(fill != MAP_FAILED && !madvise(fill, FILL_PAGES * OS_PAGE, MADV_DONTFORK));
    while (add_mappings())
        ;
    for (size_t i = 0; i < SPARE; i++)
        remove_mappings();
    for (size_t room = 0; room <= ROOM_MAX; room++) {
        move_with(room, false);
        move_with(room, true);
    }
    puts("vregions: moved, or not moved, with as many mappings as a process may have");
    return 0;
}
