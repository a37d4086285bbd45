/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * marked.c: runs a command inside a region of interest.
 * In: a command. Out: its exit status. Knows nothing of the command.
 */
#include "roi.h"
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv) {
    pid_t pid;
    int status;
    if (argc < 2) {
        fprintf(stderr, "usage: marked COMMAND...\n");
        return 2;
    }
    ROI_BEGIN();
    int error = posix_spawnp(&pid, argv[1], NULL, NULL, argv + 1, environ);
    if (error) {
        fprintf(stderr, "marked: %s: %s\n", argv[1], strerror(error));
        return 127;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    ROI_END();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
