/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * bench-attach.c: what starting programs and forking costs. In: WHAT and COUNT. Out: `us MEDIAN`,
 * the median time of one. Knows nothing of how it is hosted.
 *
 *   spawn   posix_spawn of /bin/true, which glibc makes by vfork and exec, until its end
 *   fork    fork, an allocation in the child, and its end
 *   large   posix_spawn of this program, which allocates enough to attach, until its end
 */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Chosen, not measured: some ten seconds of starts. */
#define COUNT_MAX 10000
/* Two OS pages, and four times what a process allocates before it attaches. Chosen. */
#define LITTLE 5000
#define MUCH (1 << 20)

extern char **environ;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void allocate(size_t bytes) {
    volatile char *memory = malloc(bytes);
    if (!memory)
        fail("malloc");
    memory[0] = 1;
}

static pid_t spawn(char *path, char *argument) {
    char *arguments[] = {path, argument, NULL};
    pid_t pid;
    if (posix_spawn(&pid, path, NULL, NULL, arguments, environ))
        fail(path);
    return pid;
}

static pid_t start(const char *what) {
    if (!strcmp(what, "spawn"))
        return spawn("/bin/true", NULL);
    if (!strcmp(what, "large"))
        return spawn("/proc/self/exe", "allocate");
    pid_t pid = fork();
    if (pid < 0)
        fail("fork");
    if (pid == 0) {
        allocate(LITTLE);
        _exit(0);
    }
    return pid;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static double took[COUNT_MAX];
    if (argc == 2 && !strcmp(argv[1], "allocate")) {
        allocate(MUCH);
        return 0;
    }
    int count = argc > 2 ? atoi(argv[2]) : 0;
    if (count < 1 || count > COUNT_MAX) {
        fprintf(stderr, "bench-attach: WHAT COUNT\n");
        return 1;
    }
    for (int i = 0; i < count; i++) {
        int status;
        double began = now_us();
        pid_t pid = start(argv[1]);
        if (waitpid(pid, &status, 0) != pid || status)
            fail("the child");
        took[i] = now_us() - began;
    }
    qsort(took, (size_t)count, sizeof(*took), ascending);
    printf("us %.1f\n", took[count / 2]);
    return 0;
}
