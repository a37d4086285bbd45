/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attaches.c: an honest user's processes, which only attach.
 * In: a socket's path, seconds. Out: `attaches COUNT REFUSED SILENT P50_US P99_US MAX_US`; the time
 * from the connection to the welcome. Knows nothing of who else uses the daemon.
 */
#define _GNU_SOURCE
#include "tenant.h"
#include <sys/wait.h>

#define PAUSE_US 10000      /* between two processes: a hundred a second. Chosen */
#define COUNT_MAX (1u << 17) /* more than fit into 20 minutes */

struct attached {
    unsigned status, us;
};

static struct attached one(const char *path) {
    struct attached attached = {NO_ANSWER, 0};
    int ends[2], status;
    if (pipe(ends))
        exit(1);
    pid_t child = fork();
    if (child == 0) {
        struct tenant tenant = make_tenant(1024);
        double begin = now_s();
        attached.status = attach(path, &tenant);
        attached.us = (unsigned)((now_s() - begin) * 1e6);
        _exit(write(ends[1], &attached, sizeof(attached)) != sizeof(attached));
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], &attached, sizeof(attached)) != sizeof(attached))
        attached.status = NO_ANSWER;
    close(ends[0]);
    waitpid(child, &status, 0);
    return attached;
}

static int compare(const void *a, const void *b) {
    unsigned one = *(const unsigned *)a, other = *(const unsigned *)b;
    return (one > other) - (one < other);
}

int main(int argc, char **argv) {
    static unsigned us[COUNT_MAX];
    unsigned count = 0, refused = 0, silent = 0;
    if (argc != 3)
        return 2;
    for (double end = now_s() + atof(argv[2]); now_s() < end && count < COUNT_MAX;) {
        struct attached attached = one(argv[1]);
        refused += attached.status != TCL_OK && attached.status != NO_ANSWER;
        silent += attached.status == NO_ANSWER;
        us[count++] = attached.us;
        usleep(PAUSE_US);
    }
    qsort(us, count, sizeof(*us), compare);
    printf("attaches %u %u %u %u %u %u\n", count, refused, silent, count ? us[count / 2] : 0,
           count ? us[count * 99ull / 100] : 0, count ? us[count - 1] : 0);
    return 0;
}
