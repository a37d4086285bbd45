/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * raw.c: hot memory that the program maps by a system call of its own, after cold memory from
 * malloc.
 * In: MiB cold, MiB hot, millions of accesses. Out: `raw NODE OS_PAGES` lines of the hot memory at
 * the end, `intact` when every access is there. Knows nothing of tiers.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OS_PAGE = 4096, NODES_MAX = 16 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* Prints on which nodes the OS pages are. */
static void show(char *memory, size_t bytes) {
    size_t counts[NODES_MAX] = {0};
    for (size_t at = 0; at < bytes; at += OS_PAGE) {
        void *page = memory + at;
        int node = -1;
        if (syscall(SYS_move_pages, 0, 1ul, &page, NULL, &node, 0) != 0) {
            fail("raw: move_pages");
        }
        if (node >= 0 && node < NODES_MAX) {
            counts[node]++;
        }
    }
    for (int node = 0; node < NODES_MAX; node++) {
        if (counts[node] > 0) {
            printf("raw %d %zu\n", node, counts[node]);
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: raw COLD_MIB HOT_MIB MILLIONS\n");
        return 2;
    }
    size_t cold_bytes = strtoul(argv[1], NULL, 10) << 20, bytes = strtoul(argv[2], NULL, 10) << 20;
    uint64_t accesses = strtoul(argv[3], NULL, 10) * 1000000, words = bytes / sizeof(uint64_t);
    char *cold = malloc(cold_bytes);
    /* Not by mmap(), which the runtime would see. */
    long mapped = syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    if (cold == NULL || mapped == -1 || words == 0) {
        fail("raw: memory");
    }
    uint64_t *hot = (uint64_t *)mapped; // NOLINT: an address as the kernel gave it
    memset(cold, 1, cold_bytes);
    memset(hot, 0, bytes);
    uint64_t state = 42, total = 0;
    for (uint64_t n = 0; n < accesses; n++) {
        state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
        hot[(state >> 33) % words]++;
    }
    show((char *)hot, bytes);
    for (uint64_t w = 0; w < words; w++) {
        total += hot[w];
    }
    puts(total == accesses && cold[cold_bytes - 1] == 1 ? "intact" : "lost");
    return 0;
}
