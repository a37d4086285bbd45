// Fills a node. In: its number, KiB to leave free. Out: `full`, then it holds the memory until it
// is killed. Knows nothing of Tiercel.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20, MPOL_BIND_MODE = 2, MAX_CHUNKS = 1 << 16 };

static long free_kib(int node) {
    char path[80], line[160];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
    FILE *file = fopen(path, "r");
    long kib = -1;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "Node %*d MemFree: %ld", &kib) == 1) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: hog NODE LEAVE_KIB\n");
        return 2;
    }
    const int node = atoi(argv[1]);
    const long leave = atol(argv[2]);
    const unsigned long mask = 1ul << node;
    for (int i = 0; i < MAX_CHUNKS && free_kib(node) > leave + (CHUNK_BYTES >> 10); i++) {
        char *chunk = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (chunk == MAP_FAILED ||
            syscall(SYS_mbind, chunk, CHUNK_BYTES, MPOL_BIND_MODE, &mask, 64ul, 0u) != 0) {
            fprintf(stderr, "hog: %s\n", strerror(errno));
            return 1;
        }
        memset(chunk, 1, CHUNK_BYTES);
    }
    puts("full");
    fflush(stdout);
    for (;;) {
        pause();
    }
}
