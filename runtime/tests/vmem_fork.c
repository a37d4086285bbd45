/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_fork.c: over a fork vregions are private memory: parent and child each see the old contents,
 * and no write of the other, also while threads write, vregions move, and forks nest.
 */
#include "check.h"
#include "tiercel.h"
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)6 << 20) /* three pieces */
#define ABSENT_NODE 900         /* no machine has this node */

extern char **environ;

static int *make(int huge) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | huge;
    int *region = tiercel_vregion_register(NULL, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(region != MAP_FAILED);
    return region;
}

static void fill(int *region, int value) {
    for (size_t i = 0; i < BYTES / sizeof(int); i++)
        region[i] = value + (int)i;
}

static void check_content(const int *region, int value) {
    for (size_t i = 0; i < BYTES / sizeof(int); i++)
        CHECK(region[i] == value + (int)i);
}

static void expect_success(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The child writes, moves and forks; the parent does so too, at the same time. */
static void both_write(int huge) {
    int *region = make(huge), pipes[2];
    fill(region, 1);
    CHECK(!tiercel_vregion_migrate(region, BYTES / 2, ABSENT_NODE) && !pipe(pipes));
    pid_t child = fork();
    if (child == 0) {
        char go;
        CHECK(read(pipes[0], &go, 1) == 1); /* the parent has written */
        check_content(region, 1);
        fill(region, 2);
        CHECK(!tiercel_vregion_migrate(region, BYTES, ABSENT_NODE));
        check_content(region, 2);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            check_content(region, 2);
            fill(region, 3);
            CHECK(!tiercel_vregion_migrate(region, BYTES, 0));
            check_content(region, 3);
            _exit(0);
        }
        expect_success(grandchild);
        check_content(region, 2);
        CHECK(!tiercel_vregion_release(region, BYTES));
        _exit(0);
    }
    fill(region, 5);
    CHECK(!tiercel_vregion_migrate(region, BYTES, ABSENT_NODE));
    check_content(region, 5);
    CHECK(write(pipes[1], "x", 1) == 1);
    expect_success(child);
    check_content(region, 5);
    CHECK(!tiercel_vregion_migrate(region, BYTES, 0));
    check_content(region, 5);
    CHECK(!tiercel_vregion_release(region, BYTES));
}

static _Atomic bool is_over;
static _Atomic uint64_t *counters;

/* Keeps neighbours in order: the second is never ahead of the first. */
static void *count(void *nothing) {
    for (uint64_t i = 1; !atomic_load(&is_over); i++) {
        size_t at = i * 7919 % (BYTES / 16) * 2;
        atomic_store(&counters[at], i);
        atomic_store(&counters[at + 1], i);
    }
    return nothing;
}

/* Forks during writes and moves: a child has a consistent snapshot, which does not change. */
static void while_threads_write(void) {
    pthread_t threads[2];
    counters = (void *)make(0);
    for (size_t i = 0; i < 1; i++)
        CHECK(!pthread_create(&threads[i], NULL, count, NULL));
    for (int round = 0; round < 20; round++) {
        long ticket = tiercel_vregion_start((void *)counters, BYTES, round % 2 ? 0 : ABSENT_NODE);
        CHECK(ticket > 0);
        pid_t child = fork();
        if (child == 0) {
            static uint64_t seen[BYTES / 8];
            for (size_t i = 0; i < BYTES / 8; i += 2) {
                seen[i] = counters[i];
                seen[i + 1] = counters[i + 1];
                CHECK(seen[i] >= seen[i + 1]);
            }
            CHECK(!tiercel_vregion_migrate((void *)counters, BYTES, round % 2 ? ABSENT_NODE : 0));
            for (size_t i = 0; i < BYTES / 8; i++)
                CHECK(seen[i] == counters[i]);
            _exit(0);
        }
        expect_success(child);
        CHECK(!tiercel_vregion_await(ticket));
    }
    atomic_store(&is_over, true);
    pthread_join(threads[0], NULL);
    CHECK(!tiercel_vregion_release((void *)counters, BYTES));
}

/* vfork and posix_spawn change nothing. */
static void spawned(void) {
    int *region = make(0);
    char *argv[] = {"true", NULL};
    pid_t child;
    fill(region, 9);
    CHECK(!posix_spawnp(&child, "true", NULL, NULL, argv, environ));
    expect_success(child);
    child = vfork();
    if (child == 0) {
        region[0] = 77; /* as in any vfork, the parent's */
        _exit(0);
    }
    expect_success(child);
    CHECK(region[0] == 77 && region[1] == 10);
    CHECK(!tiercel_vregion_migrate(region, BYTES, ABSENT_NODE) && region[0] == 77);
    CHECK(!tiercel_vregion_release(region, BYTES));
}

int main(void) {
    CHECK(!tiercel_vregion_copiers(3)); /* helper threads do not exist in a child */
    both_write(0);
    both_write(16 << 26);
    both_write(21 << 26);
    while_threads_write();
    spawned();
    puts("fork: vregions are private memory to parent, child and grandchild");
    return 0;
}
