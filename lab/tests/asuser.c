/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * asuser.c: runs a command as another user.
 * In: a user's number and a command. Out: the command's status. Knows nothing of the command.
 */
#define _GNU_SOURCE
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: asuser UID COMMAND...\n");
        return 2;
    }
    unsigned user = (unsigned)atoi(argv[1]);
    if (setgroups(0, NULL) || setgid(user) || setuid(user)) {
        perror("asuser");
        return 2;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
