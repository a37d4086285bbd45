/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_exec.c: vfork, posix_spawn, exec that fails, exec that succeeds: the pid gets a new
 * session, and children that only exec cost none.
 */
#include "hazard.h"

static void check_true(pid_t pid) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
}

static char *quiet[] = {"/bin/true", NULL};

__attribute__((noinline)) static void vfork_true(void) {
    pid_t pid = vfork();
    if (!pid) {
        execv("/bin/true", quiet);
        _exit(9);
    }
    check_true(pid);
}

static int hosted(char *self) {
    char *again[] = {self, "again", NULL};
    void *kept = malloc(1 << 20);
    for (int i = 0; i < 5; i++) {
        pid_t pid;
        vfork_true();
        CHECK(!posix_spawn(&pid, "/bin/true", NULL, NULL, quiet, environ), "posix_spawn");
        check_true(pid);
        pid = fork();
        if (!pid) {
            unsetenv(TCL_SOCKET_ENV);
            execv("/bin/true", quiet);
            _exit(9);
        }
        check_true(pid);
    }
    memset(kept, 1, 1 << 20);
    execv("/nonexistent/program", again);
    churn(1000, 3); /* exec failed: tracking continues */
    free(kept);
    execv("/proc/self/exe", again);
    return 1;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "again")) {
        churn(1000, 4);
        return 0;
    }
    if (argc > 1)
        return hosted(argv[0]);
    struct daemon d = {0};
    host(&d, "hosted");
    struct session *first = d.session[0], *last = d.session[d.sessions - 1];
    CHECK(first->pid == last->pid && first != last,
          "the exec kept its pid and changed its session");
    CHECK(first->kinds[TCL_BORN] > 100 && last->kinds[TCL_BORN] > 100, "records on both sides");
    printf("track_exec: %d sessions, first and last of one pid\n", d.sessions);
    close_daemon(&d);
    return 0;
}
