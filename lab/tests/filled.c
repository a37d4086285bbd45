/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * filled.c: fills nodes as programs do, whose first touches go elsewhere when a node is full.
 * In: KiB to give back on each node, nodes. Out: `full`, then it holds the memory until it is
 * killed. Knows nothing of watermarks.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OS_PAGE = 4096, CHUNK_PAGES = 16, CHUNKS_MAX = 1 << 16, MPOL_PREFERRED_MODE = 1 };

static void fail(const char *what) {
    fprintf(stderr, "filled: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Whether all of a chunk is on the node. */
static int is_on(char *chunk, int node) {
    void *pages[CHUNK_PAGES];
    int status[CHUNK_PAGES];
    for (int i = 0; i < CHUNK_PAGES; i++) {
        pages[i] = chunk + i * OS_PAGE;
    }
    if (syscall(SYS_move_pages, 0, (unsigned long)CHUNK_PAGES, pages, NULL, status, 0) != 0) {
        fail("move_pages");
    }
    for (int i = 0; i < CHUNK_PAGES; i++) {
        if (status[i] != node) {
            return 0;
        }
    }
    return 1;
}

/* Fills a node, then gives `back` bytes of it back. */
static void fill(int node, size_t back) {
    const unsigned long mask = 1ul << node;
    const size_t bytes = (size_t)CHUNK_PAGES * OS_PAGE;
    static char *chunks[CHUNKS_MAX];
    for (int i = 0; i < CHUNKS_MAX; i++) {
        char *chunk = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (chunk == MAP_FAILED || madvise(chunk, bytes, MADV_NOHUGEPAGE) != 0 ||
            syscall(SYS_mbind, chunk, bytes, MPOL_PREFERRED_MODE, &mask, 64ul, 0u) != 0) {
            fail("memory");
        }
        memset(chunk, 1, bytes);
        if (!is_on(chunk, node)) {
            munmap(chunk, bytes);
            for (size_t given = 0; given < back && i > 0; given += bytes) {
                munmap(chunks[--i], bytes);
            }
            return;
        }
        chunks[i] = chunk;
    }
    fail("the node is too large");
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: filled BACK_KIB NODE...\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        fill(atoi(argv[i]), strtoul(argv[1], NULL, 10) << 10);
    }
    puts("full");
    fflush(stdout);
    for (;;) {
        pause();
    }
}
