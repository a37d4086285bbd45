/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attaches.c: an honest user's processes, which only attach.
 * In: a socket's path, seconds; beside it the socket of a server that does nothing. Out:
 * `attaches COUNT REFUSED SILENT P50_US P99_US MAX_US`, the time from the connection to the
 * welcome; with such a server also `control` with the same figures of it. `attaches serve PATH` is
 * that server. Knows nothing of who else uses the daemon.
 *
 * On a busy machine every change from one thread to another takes time, in any program. The server
 * passes an answer through as many threads as the daemon does, each of which only passes it on:
 * what the daemon takes beyond that is its own.
 */
#define _GNU_SOURCE
#include "tenant.h"
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define PAUSE_US 10000       /* between two processes: a hundred a second. Chosen */
#define COUNT_MAX (1u << 17) /* more than fit into 20 minutes */
/* Threads after the acceptor: greeting thread, broker, greeting thread, loop. */
#define HOPS 4

struct attached {
    unsigned status, us;
};

/* ---- The server ------------------------------------------------------------------------------ */

static int hops[HOPS][2];

/* Takes connections from one pipe and puts them into the next. */
static void *pass_on(void *number) {
    int from = hops[(intptr_t)number][0], to = hops[(intptr_t)number + 1][1], connection;
    while (read(from, &connection, sizeof(connection)) == sizeof(connection) &&
           write(to, &connection, sizeof(connection)) == sizeof(connection)) {
    }
    return NULL;
}

static void *answer_all(void *number) {
    struct tcl_welcome welcome = {.status = TCL_OK};
    struct tcl_hello hello;
    int connection;
    while (read(hops[(intptr_t)number][0], &connection, sizeof(connection)) == sizeof(connection)) {
        /* What came with it is closed unseen. */
        if (recv(connection, &hello, sizeof(hello), 0) != sizeof(hello) ||
            send(connection, &welcome, sizeof(welcome), MSG_NOSIGNAL) != sizeof(welcome))
            perror("an answer");
        close(connection);
    }
    return NULL;
}

static int serve(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
    if (bind(listener, (void *)&address, sizeof(address)) || chmod(path, 0666) ||
        listen(listener, 16))
        return 1;
    for (int i = 0; i < HOPS; i++)
        if (pipe(hops[i]))
            return 1;
    for (intptr_t i = 0; i < HOPS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, i + 1 < HOPS ? pass_on : answer_all, (void *)i))
            return 1;
    }
    puts("serves");
    fflush(stdout);
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0;)
        if (write(hops[0][1], &fd, sizeof(fd)) != sizeof(fd))
            return 1;
    return 1;
}

/* ---- The processes --------------------------------------------------------------------------- */

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

/* What came of the processes that connected to one server. */
struct series {
    unsigned count, refused, silent, us[COUNT_MAX];
};

static void add(struct series *series, const char *path) {
    struct attached attached = one(path);
    series->refused += attached.status != TCL_OK && attached.status != NO_ANSWER;
    series->silent += attached.status == NO_ANSWER;
    series->us[series->count++] = attached.us;
}

static void show(const char *name, struct series *series) {
    unsigned count = series->count, *us = series->us;
    qsort(us, count, sizeof(*us), compare);
    printf("%s %u %u %u %u %u %u\n", name, count, series->refused, series->silent,
           count ? us[count / 2] : 0, count ? us[count * 99ull / 100] : 0,
           count ? us[count - 1] : 0);
}

int main(int argc, char **argv) {
    static struct series attaches, control;
    if (argc == 3 && !strcmp(argv[1], "serve"))
        return serve(argv[2]);
    if (argc != 3 && argc != 4)
        return 2;
    for (double end = now_s() + atof(argv[2]); now_s() < end && attaches.count < COUNT_MAX;) {
        add(&attaches, argv[1]);
        if (argc == 4)
            add(&control, argv[3]);
        usleep(PAUSE_US);
    }
    show("attaches", &attaches);
    if (argc == 4)
        show("control", &control);
    return 0;
}
