// An independent check of where memory lies.
// In: a process, an address, a length. Out: `node N COUNT` and `absent COUNT`, in OS pages.
// Knows nothing of Tiercel: it asks the kernel by move_pages without a target.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BATCH = 4096, MAX_NODES = 1024 };

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: residency PID ADDRESS BYTES\n");
        return 2;
    }
    const long os_page = sysconf(_SC_PAGESIZE);
    const int pid = atoi(argv[1]);
    const unsigned long start = strtoul(argv[2], NULL, 0) & ~((unsigned long)os_page - 1);
    const unsigned long end = strtoul(argv[2], NULL, 0) + strtoul(argv[3], NULL, 0);
    static unsigned long counts[MAX_NODES];
    unsigned long absent = 0;
    for (unsigned long at = start; at < end;) {
        void *pages[BATCH];
        int status[BATCH];
        unsigned long n = 0;
        for (; n < BATCH && at < end; n++, at += (unsigned long)os_page) {
            pages[n] = (void *)at;
        }
        if (syscall(SYS_move_pages, pid, n, pages, NULL, status, 0) != 0) {
            fprintf(stderr, "residency: move_pages: %s\n", strerror(errno));
            return 1;
        }
        for (unsigned long i = 0; i < n; i++) {
            if (status[i] >= 0 && status[i] < MAX_NODES) {
                counts[status[i]]++;
            } else {
                absent++;
            }
        }
    }
    for (int node = 0; node < MAX_NODES; node++) {
        if (counts[node] != 0) {
            printf("node %d %lu\n", node, counts[node]);
        }
    }
    printf("absent %lu\n", absent);
    return 0;
}
