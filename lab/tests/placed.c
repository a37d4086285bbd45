/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * placed.c: memory on given nodes under no policy, of which some is accessed from one CPU.
 * In: CPU, KiB of cold memory, its node, KiB of each hot range, their nodes; in PLACED_GO a file
 * without which it accesses nothing. Out: a line
 * `cold ADDRESS BYTES NODE` or `hot ADDRESS BYTES NODE` for each, `ready`; accesses until SIGTERM;
 * `intact` when every byte is as it was written. Knows nothing of tiers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OS_PAGE = 4096, RANGES_MAX = 16, MPOL_DEFAULT_MODE = 0, MPOL_BIND_MODE = 2 };

struct range {
    volatile uint64_t *memory;
    size_t bytes;
    uint64_t count;
};

static volatile sig_atomic_t is_over;

static void end(int signal) {
    (void)signal;
    is_over = 1;
}

static void fail(const char *what) {
    fprintf(stderr, "placed: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Memory on a node. It is bound while it is touched, and under no policy afterwards: the kernel
 * gives no hints for memory that is bound. */
static struct range place(const char *kind, const char *kib, const char *node) {
    struct range range = {.bytes = strtoul(kib, NULL, 10) << 10};
    void *memory =
        mmap(NULL, range.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const unsigned long mask = 1ul << atoi(node);
    if (memory == MAP_FAILED || madvise(memory, range.bytes, MADV_NOHUGEPAGE) != 0 ||
        syscall(SYS_mbind, memory, range.bytes, MPOL_BIND_MODE, &mask, 64ul, 0u) != 0) {
        fail("memory on a node");
    }
    range.memory = memory;
    for (size_t at = 0; at < range.bytes / sizeof(uint64_t); at++) {
        range.memory[at] = at;
    }
    if (syscall(SYS_mbind, memory, range.bytes, MPOL_DEFAULT_MODE, NULL, 0ul, 0u) != 0) {
        fail("no policy");
    }
    printf("%s %p %zu %s\n", kind, memory, range.bytes, node);
    return range;
}

/* Waits for the file that lets accesses begin, if one is named. */
static void wait_for_go(void) {
    const char *go = getenv("PLACED_GO");
    while (go != NULL && access(go, F_OK) != 0 && !is_over) {
        usleep(20000);
    }
}

/* Adds 1 to the first word of each OS page. */
static void access_all(struct range *range) {
    for (size_t at = 0; at < range->bytes; at += OS_PAGE) {
        range->memory[at / sizeof(uint64_t)]++;
    }
    range->count++;
}

static int is_intact(const struct range *range) {
    for (size_t at = 0; at < range->bytes / sizeof(uint64_t); at++) {
        uint64_t added = at % (OS_PAGE / sizeof(uint64_t)) == 0 ? range->count : 0;
        if (range->memory[at] != at + added) {
            return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 6 || argc > 5 + RANGES_MAX) {
        fprintf(stderr, "usage: placed CPU COLD_KIB COLD_NODE HOT_KIB HOT_NODE...\n");
        return 2;
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(argv[1]), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        fail("sched_setaffinity");
    }
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    struct range cold = place("cold", argv[2], argv[3]);
    struct range hot[RANGES_MAX];
    int count = argc - 5;
    for (int i = 0; i < count; i++) {
        hot[i] = place("hot", argv[4], argv[5 + i]);
    }
    puts("ready");
    fflush(stdout);
    wait_for_go();
    while (!is_over) {
        for (int i = 0; i < count; i++) {
            access_all(&hot[i]);
        }
    }
    int good = is_intact(&cold);
    for (int i = 0; i < count; i++) {
        good = good && is_intact(&hot[i]);
    }
    puts(good ? "intact" : "corrupt");
    return !good;
}
