/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_fork.c: forked children, also of threaded parents, get sessions of their own and may free
 * inherited objects; a raw clone is detected, although no handler ran.
 */
#include "hazard.h"

static _Atomic bool stop;

static void *busy(void *seed) {
    while (!stop)
        churn(200, (unsigned)(uintptr_t)seed);
    return NULL;
}

static int child_of(void *inherited[16]) {
    for (int i = 0; i < 16; i++)
        free(inherited[i]);
    churn(500, 7);
    return 3;
}

static void check_child(pid_t pid) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "no child");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3, "child: status %x", status);
}

static int hosted(void) {
    void *objects[16];
    pthread_t thread[2];
    for (int i = 0; i < 16; i++)
        objects[i] = malloc(50000);
    for (uintptr_t i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, busy, (void *)i);
    for (int i = 0; i < 10; i++) {
        pid_t pid = fork();
        if (!pid)
            _exit(child_of(objects));
        check_child(pid);
    }
    stop = true;
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (!pid)
        _exit(child_of(objects));
    check_child(pid);
    return 0;
}

/* A process that waited too long for the daemon attaches again, so it may have two sessions. */
static int processes(const struct daemon *d) {
    int count = 0;
    for (int i = 0; i < d->sessions; i++) {
        int first = 0;
        while (d->session[first]->pid != d->session[i]->pid)
            first++;
        count += first == i;
    }
    return count;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted();
    (void)argv;
    struct daemon d = {0};
    host(&d, "hosted");
    CHECK(processes(&d) == 12, "%d processes in %d sessions", processes(&d), d.sessions);
    for (int i = 1; i < d.sessions; i++) {
        if (d.session[i]->pid == d.session[0]->pid)
            continue;
        uint32_t parent = d.session[i]->hello.parent_pid;
        CHECK(parent == (uint32_t)d.session[0]->pid, "parent %u", parent);
    }
    printf("track_fork: %d processes, parent of all children known\n", processes(&d));
    close_daemon(&d);
    return 0;
}
