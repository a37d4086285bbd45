/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_ends.c: a program whose heap moves ends when its last thread does, with status 0 and its
 * exit handlers: the thread of the runtime that moves the heap does not keep it alive.
 */
#include "hazard.h"
#include <sched.h>

#define MIB ((size_t)1 << 20)

static long threads_now(void) {
    struct stat tasks; /* proc counts a link for each thread */
    CHECK(!stat("/proc/self/task", &tasks));
    return (long)tasks.st_nlink - 2;
}

static void say_end(void) {
    fputs("its handlers ran", stderr);
}

static void *outlive(void *main) {
    CHECK(!pthread_join(*(pthread_t *)main, NULL));
    hazard_sink = malloc(MIB);
    return NULL;
}

static int hosted(const char *part, bool has_mover) {
    static pthread_t self;
    pthread_t thread;
    alarm(HANG_S);
    hazard_sink = memset(malloc(48 * MIB), 1, 48 * MIB);
    while (has_mover && threads_now() == 1)
        sched_yield();
    atexit(say_end);
    self = pthread_self();
    CHECK(strcmp(part, "thread") || !pthread_create(&thread, NULL, outlive, &self));
    pthread_exit(NULL);
}

static void set_backing(struct session *s) {
    control_of(s)->backing = TCL_BACKING_VMEM;
}

static bool has_mover(void) {
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || !access("/dev/userfaultfd", R_OK | W_OK);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1], has_mover());
    const char *const parts[] = {"main", "thread"};
    for (int i = 0; i < 2; i++) {
        struct daemon d = {.prepare = set_backing};
        open_daemon(&d);
        int status = serve(&d, start_hosted(&d, parts[i]));
        CHECK(status == 0 && !strcmp(errors_of(&d), "its handlers ran"), "%s: %x, %s", parts[i],
              (unsigned)status, errors_of(&d));
        close_daemon(&d);
    }
    puts("vmem_ends: a program ends with its last thread");
    return 0;
}
