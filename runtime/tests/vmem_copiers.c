/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_copiers.c: several threads copy in a move: as many as are requested and no more, with all
 * signals blocked, and none in a forked child until it moves something itself. vmem_checker,
 * vmem_fork and vmem_raw, which use several, too, check that no write is lost.
 */
#include "tiercel.h"
#include "vregion.h"
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define BYTES (9 * MIB + 4096 * 3) /* no multiple of a chunk */
#define SMALL ((size_t)64 << 10)   /* not worth a thread */
#define ABSENT_NODE 900            /* no machine has this node */
#define COPIERS 4                  /* chosen: more than by default on a small machine */

static uint64_t *region;

/* Calls `each` for all threads but this one, and counts them. */
static int other_threads(void (*each)(int thread, void *), void *context) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0, self = (int)syscall(SYS_gettid);
    CHECK(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));) {
        int thread = atoi(entry->d_name);
        if (thread <= 0 || thread == self)
            continue;
        count++;
        if (each)
            each(thread, context);
    }
    closedir(tasks);
    return count;
}

static void check_blocked(int thread, void *nothing) {
    char path[64], line[256];
    unsigned long blocked = 0;
    (void)nothing;
    snprintf(path, sizeof(path), "/proc/self/task/%d/status", thread);
    FILE *file = fopen(path, "r");
    CHECK(file);
    while (fgets(line, sizeof(line), file))
        sscanf(line, "SigBlk: %lx", &blocked);
    fclose(file);
    int signals[] = {SIGTERM, SIGINT, SIGALRM, SIGUSR1, SIGCHLD, SIGPROF, SIGRTMAX};
    for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
        CHECK(blocked >> (signals[i] - 1) & 1, "thread %d: signal %d", thread, signals[i]);
}

/* Counts threads that were on a CPU at all. */
static void count_run(int thread, void *count) {
    char path[64];
    unsigned long on_cpu_ns = 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", thread);
    FILE *file = fopen(path, "r");
    CHECK(file && fscanf(file, "%lu", &on_cpu_ns) == 1);
    fclose(file);
    *(int *)count += on_cpu_ns > 0;
}

static void fill(uint64_t seed) {
    fill_words(region, BYTES, seed);
}

static void check_content(uint64_t seed) {
    check_words(region, BYTES, seed);
}

/* There and back, which makes it shared again after a fork; then a first copy, an updated copy, and
 * a shadow. */
static void move(uint64_t seed) {
    fill(seed);
    CHECK(!tiercel_vregion_migrate(region, BYTES, ABSENT_NODE));
    check_content(seed);
    CHECK(!tiercel_vregion_migrate(region, BYTES, 0));
    CHECK(!tiercel_vregion_replicate(region, BYTES, ABSENT_NODE));
    fill(seed + 1);
    CHECK(!tiercel_vregion_replicate(region, BYTES, ABSENT_NODE));
    CHECK(!tiercel_vregion_migrate(region, BYTES, ABSENT_NODE));
    check_content(seed + 1);
    CHECK(!tiercel_vregion_migrate(region, BYTES, 0));
    check_content(seed + 1);
}

static void refuse(void) {
    CHECK(tiercel_vregion_copiers(-1) == -1 && errno == EINVAL);
    CHECK(tiercel_vregion_copiers(17) == -1 && errno == EINVAL);
}

static void request_copiers(void) {
    move(10);
    CHECK(other_threads(NULL, NULL) == 0, "the mover alone, and %d", other_threads(NULL, NULL));
    CHECK(!tiercel_vregion_copiers(COPIERS));
    CHECK(!tiercel_vregion_migrate(region, SMALL, ABSENT_NODE) && other_threads(NULL, NULL) == 0);
    for (int ran = 0, turn = 0; ran < COPIERS - 1; turn++) {
        move((uint64_t)turn * 2 + 20);
        ran = 0;
        CHECK(other_threads(count_run, &ran) == COPIERS - 1, "%d helpers",
              other_threads(NULL, NULL));
    }
    other_threads(check_blocked, NULL);
}

/* Parent and child move at the same time. */
static void fork_both(void) {
    fill(1);
    pid_t child = fork();
    if (child == 0) {
        CHECK(other_threads(NULL, NULL) == 0);
        check_content(1);
        CHECK(!tiercel_vregion_migrate(region, SMALL, ABSENT_NODE) &&
              other_threads(NULL, NULL) == 0);
        move(30);
        CHECK(other_threads(NULL, NULL) == COPIERS - 1, "%d helpers", other_threads(NULL, NULL));
        _exit(0);
    }
    check_content(1);
    move(40);
    expect_success(child);
}

/* By default there is no helper where this thread may use only one CPU. */
static void pin(void) {
    pid_t child = fork();
    if (child == 0) {
        cpu_set_t mine, one;
        CPU_ZERO(&one);
        CHECK(!sched_getaffinity(0, sizeof(mine), &mine));
        for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
            if (CPU_ISSET(cpu, &mine))
                CPU_SET(cpu, &one);
        CHECK(!sched_setaffinity(0, sizeof(one), &one) && !tiercel_vregion_copiers(0));
        move(50);
        CHECK(other_threads(NULL, NULL) == 0, "%d helpers", other_threads(NULL, NULL));
        _exit(0);
    }
    expect_success(child);
}

int main(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    alarm(HANG_S);
    setenv("TIERCEL_DSA", "off", 1);
    region = tiercel_vregion_register(NULL, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(region != MAP_FAILED);
    refuse();
    CHECK(!tiercel_vregion_copiers(1));
    if (tiercel_vregion_replicate(region, BYTES, ABSENT_NODE) && errno == ENOTSUP) {
        puts("copiers: writes cannot be tracked here, one thread copies");
        return 0;
    }
    request_copiers();
    fork_both();
    pin();
    puts("copiers: exactly as many as were requested, and nothing lost");
    return 0;
}
