/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_raw.c: a program unmaps, remaps and protects parts of a vregion by system calls that the
 * runtime does not see, while another thread moves it. The program survives, and all memory that it
 * still has keeps its contents.
 *
 * Between the last check of a mapping and its switch there are two system calls. A change just
 * there is overwritten (docs/pools.md), so a few rounds may fail for that reason.
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
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define BYTES (3 * MIB)   /* more than a piece */
#define PART_AT (MIB / 2) /* the part that is changed */
#define PART (2 * MIB)    /* reaches into two pieces */
#define OS_PAGE ((size_t)4096)
#define ABSENT_NODE 900              /* no machine has this node */
#define ROUNDS 160                   /* chosen */
#define MOVES 4                      /* a round */
#define SPIN 400000u                 /* chosen: longer than a move of a piece */
#define IN_THE_GAP_MAX (ROUNDS / 20) /* chosen */

enum taking { UNMAP, REMAP, PROTECT, REPLACE, TAKINGS };

struct mover {
    char *region;
    _Atomic int begun; /* moves */
};

static char word(size_t at, int round) {
    return (char)(at / OS_PAGE * 7 + at + (size_t)round);
}

static void fill(char *start, size_t bytes, int round) {
    for (size_t at = 0; at < bytes; at += 64)
        start[at] = word(at, round);
}

static bool holds(const char *start, size_t from, size_t bytes, int round) {
    for (size_t at = 0; at < bytes; at += 64)
        if (start[at] != word(from + at, round))
            return false;
    return true;
}

static void *move(void *argument) {
    struct mover *mover = argument;
    for (int i = 0; i < MOVES; i++) {
        atomic_store(&mover->begun, i + 1);
        int failed = tiercel_vregion_migrate(mover->region, BYTES, i % 2 ? 0 : ABSENT_NODE);
        CHECK(!failed || errno == EFAULT || errno == EBUSY || errno == ENODEV, "a move");
    }
    return NULL;
}

/* Waits for a random moment of a random move. */
static void await_moment(struct mover *mover, unsigned seed) {
    while (atomic_load(&mover->begun) <= (int)(seed >> 8) % MOVES)
        ;
    for (volatile unsigned i = seed % SPIN; i > 0; i--)
        ;
}

static void raw(long failed) {
    CHECK(failed != -1);
}

/* Changes the part, and returns where its contents are now; NULL: unmapped. */
static char *take(char *part, enum taking how, char *elsewhere, int round) {
    char *fresh;
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    switch (how) {
    case REMAP:
        for (size_t at = 0; at < PART; at += OS_PAGE) /* a call takes one mapping */
            raw(syscall(SYS_mremap, part + at, OS_PAGE, OS_PAGE, flags, elsewhere + at));
        return elsewhere;
    case PROTECT:
        raw(syscall(SYS_mprotect, part, PART, PROT_NONE));
        return part;
    case REPLACE:
        raw(syscall(SYS_munmap, part, PART));
        fresh = (char *)syscall(SYS_mmap, NULL, PART, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(fresh != MAP_FAILED);
        for (size_t at = 0; at < PART; at += 64)
            fresh[at] = word(PART_AT + at, round);
        return fresh;
    default:
        raw(syscall(SYS_munmap, part, PART));
        return NULL;
    }
}

/* True when all contents are as expected. */
static bool play(int round, enum taking how, unsigned seed) {
    struct mover mover = {0};
    pthread_t thread;
    int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    mover.region = tiercel_vregion_register(NULL, BYTES, rights, flags, -1, 0);
    char *elsewhere = mmap(NULL, PART, PROT_NONE, flags, -1, 0);
    CHECK(mover.region != MAP_FAILED && elsewhere != MAP_FAILED);
    CHECK(!tiercel_vregion_copiers(1 + round % 3));
    fill(mover.region, BYTES, round);
    if (seed >> 30 == 0)
        fork_once(); /* it is private memory then, which moves in another way */
    CHECK(!pthread_create(&thread, NULL, move, &mover));
    await_moment(&mover, seed);
    char *part = take(mover.region + PART_AT, how, elsewhere, round);
    pthread_join(thread, NULL);
    if (how == PROTECT)
        raw(syscall(SYS_mprotect, part, PART, rights));
    CHECK(holds(mover.region, 0, PART_AT, round), "before the part");
    CHECK(holds(mover.region + PART_AT + PART, PART_AT + PART, BYTES - PART_AT - PART, round));
    bool was_there = !part || holds(part, PART_AT, PART, round);
    CHECK(!tiercel_vregion_release(mover.region, BYTES));
    if (how == REMAP || how == REPLACE) { /* which is not the vregion's any longer */
        bool is_inside = part < mover.region + BYTES && mover.region < part + PART;
        CHECK(is_inside || !was_there || holds(part, PART_AT, PART, round), "lost at the end");
        raw(syscall(SYS_munmap, part, PART));
    }
    if (how != REMAP)
        raw(syscall(SYS_munmap, elsewhere, PART));
    return was_there;
}

int main(void) {
    unsigned seed = 1;
    int lost = 0;
    for (int round = 0; round < ROUNDS; round++) {
        seed = seed * 1664525u + 1013904223u;
        lost += !play(round, (enum taking)(round % TAKINGS), seed);
    }
    CHECK(lost <= IN_THE_GAP_MAX, "%d rounds of %d", lost, ROUNDS);
    printf("vregions: %d times taken away by raw system calls while they moved, %d in the gap\n",
           ROUNDS, lost);
    return 0;
}
