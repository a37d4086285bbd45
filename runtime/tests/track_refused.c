/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_refused.c: a kernel that refuses: seccomp filters on memfd_create, socket, connect; a file
 * size limit; shared memory that runs out, at the start and in the middle. No SIGBUS, no SIGXFSZ,
 * no word; the offer has what failed.
 */
#include "hazard.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define POPULATE_WRITE 23 /* MADV_POPULATE_WRITE */

/* From now on `call` fails with `error`; argument 2 must equal `only` unless that is -1. */
static void refuse(int call, int error, int only) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, only < 0 ? 1 : 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)only, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    if (only < 0) { /* the jump skips the argument's test */
        code[1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 2, 3);
    }
    struct sock_fprog program = {sizeof(code) / sizeof(*code), code};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static int hosted(void) {
    churn(3000, 1);
    return 42;
}

/* A launcher: restricts itself, then executes the program. */
static int restricted(const char *how, char *self) {
    setenv(TCL_SOCKET_ENV, getenv("SOCKET_LATER"), 1);
    if (!strcmp(how, "memfd"))
        refuse(SYS_memfd_create, EPERM, -1);
    else if (!strcmp(how, "memfd-old"))
        refuse(SYS_memfd_create, ENOSYS, -1);
    else if (!strcmp(how, "socket"))
        refuse(SYS_socket, EACCES, -1);
    else if (!strcmp(how, "connect"))
        refuse(SYS_connect, EPERM, -1);
    else if (!strcmp(how, "exhausted"))
        refuse(SYS_madvise, ENOMEM, POPULATE_WRITE);
    else if (!strcmp(how, "old-kernel"))
        refuse(SYS_madvise, EINVAL, POPULATE_WRITE);
    else if (!strcmp(how, "fsize"))
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 20, 1 << 20});
    else
        setrlimit(RLIMIT_AS, &(struct rlimit){1 << 30, 1 << 30});
    execv("/proc/self/exe", (char *[]){self, "hosted", NULL});
    return 1;
}

/* Shared memory is exhausted while the program runs. */
static int halfway(void) {
    churn(1000, 1);
    refuse(SYS_madvise, ENOMEM, POPULATE_WRITE);
    for (int i = 0; i < 64; i++) /* far enough to need more of it */
        hazard_sink = malloc(1 << 20);
    churn(3000, 2);
    return 42;
}

static void run(const char *how, int error, int sessions) {
    struct daemon d = {0};
    open_daemon(&d);
    setenv("SOCKET_LATER", d.path, 1);
    char path[108];
    strcpy(path, d.path);
    if (strcmp(how, "halfway"))
        d.path[0] = 0; /* not before it is restricted */
    pid_t pid = start_hosted(&d, how);
    strcpy(d.path, path);
    int status = serve(&d, pid);
    const char *said = errors_of(&d);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "%s: status %x: %s", how, status, said);
    CHECK(!*said, "%s: said: %s", how, said);
    CHECK(d.offer->failed == (error != 0) && d.offer->failed_errno == (uint32_t)error,
          "%s: %lu failed: %s", how, d.offer->failed, strerror(d.offer->failed_errno));
    CHECK(d.sessions == sessions, "%s: %d sessions", how, d.sessions);
    if (!strcmp(how, "halfway") || !strcmp(how, "exhausted"))
        CHECK(strstr(header_of(d.session[0])->reason, "exhausted"), "reason: %s",
              header_of(d.session[0])->reason);
    close_daemon(&d);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "hosted"))
        return hosted();
    if (argc > 1 && !strcmp(argv[1], "halfway"))
        return halfway();
    if (argc > 1)
        return restricted(argv[1], argv[0]);
    run("memfd", EPERM, 0);
    run("memfd-old", ENOSYS, 0);
    run("socket", EACCES, 0);
    run("connect", EPERM, 0);
    run("fsize", EFBIG, 0);
    run("exhausted", 0, 1);
    run("halfway", 0, 1);
    run("old-kernel", 0, 1);
    run("address-space", 0, 1);
    printf("track_refused: seccomp, file size, address space, exhausted memory: unharmed\n");
    return 0;
}
