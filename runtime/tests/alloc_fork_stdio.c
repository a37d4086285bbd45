/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_fork_stdio.c: fork while one thread reads lines and another one flushes all streams.
 * In: the preloaded library. Out: one line, 0 when no fork hung.
 * Knows nothing of the allocator's locks.
 *
 * getline allocates while it holds a stream's lock; fflush(NULL) waits for that lock while it holds
 * the list of streams; fork waits for the list (glibc bug 19431).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKS 100

static _Atomic int stop;
static FILE *file;

static void *read_lines(void *unused) {
    while (!stop) {
        char *line = NULL;
        size_t bytes = 0;
        rewind(file);
        while (getline(&line, &bytes, file) > 0) {
            free(line);
            line = NULL;
            bytes = 0;
            usleep(100); /* a stream's lock is not fair: the other thread must get its turn */
        }
        free(line);
    }
    return unused;
}

static void *flush(void *unused) {
    while (!stop) {
        fflush(NULL);
        usleep(100); /* nor is that of the list: fork must get its turn */
    }
    return unused;
}

int main(void) {
    pthread_t threads[2];
    int bad = 0;
    file = tmpfile();
    for (int i = 0; file && i < 4; i++)
        fprintf(file, "%2000000d\n", i);
    if (!file || fflush(file)) {
        printf("alloc_fork_stdio: no temporary file\n");
        return 1;
    }
    pthread_create(&threads[0], NULL, read_lines, NULL);
    pthread_create(&threads[1], NULL, flush, NULL);
    for (int i = 0; i < FORKS && !bad; i++) {
        pid_t child = fork();
        if (child == 0) {
            /* A stream of the child's own, and one more use of the list. */
            FILE *null = fopen("/dev/null", "w");
            _exit(!null || fprintf(null, "x") != 1 || fflush(NULL));
        }
        int status = 1;
        bad = child < 0 || waitpid(child, &status, 0) != child || status;
    }
    stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("alloc_fork_stdio: %s\n", bad ? "a child failed" : "ok");
    return bad;
}
