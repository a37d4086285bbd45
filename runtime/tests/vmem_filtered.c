/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_filtered.c: a program whose heap moves installs a seccomp filter, for all its threads, that
 * kills for every call which the program would not make without the runtime. It goes on, allocates,
 * forks, and so do its children, with a heap that moves and one that does not.
 */
#include "hazard.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>

#define MIB ((size_t)1 << 20)
#define ABSENT_NODE 900 /* no machine has this node */
#define ROUNDS 8        /* chosen: several forks, each after births and deaths */

static const int fatal[] = {
    SYS_shmget,      SYS_shmat,        SYS_shmctl,        SYS_prctl,   SYS_seccomp,
    SYS_userfaultfd, SYS_memfd_create, SYS_socket,        SYS_connect, SYS_sendmsg,
    SYS_move_pages,  SYS_mbind,        SYS_get_mempolicy, SYS_mincore, SYS_close_range,
    SYS_setsockopt,  SYS_recvmsg,      SYS_getcpu,        SYS_openat,  SYS_process_vm_readv,
    SYS_msync,       SYS_mremap,
};
#define FATAL (sizeof(fatal) / sizeof(*fatal))

static void kill_for_unusual_calls(void) {
    struct sock_filter code[2 * FATAL + 2];
    size_t count = 0;
    code[count++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < FATAL; i++) {
        code[count++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)fatal[i], 0, 1);
        code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {(unsigned short)count, code};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
}

static void use_heap(int content) {
    char *at[4];
    for (int i = 0; i < 4; i++)
        CHECK((at[i] = malloc((size_t)(i + 1) * 5 * MIB)) &&
              memset(at[i], content, (size_t)(i + 1) * 5 * MIB));
    for (int i = 0; i < 4; i++) {
        CHECK(at[i][0] == content && at[i][5 * MIB - 1] == content);
        free(at[i]);
    }
}

static int hosted(const char *part) {
    char *kept = memset(malloc(32 * MIB), 7, 32 * MIB);
    use_heap(1); /* some of it moves meanwhile */
    fork_once();
    kill_for_unusual_calls();
    for (int i = 0; i < ROUNDS; i++) {
        use_heap(i);
        pid_t child = fork();
        if (child == 0) {
            use_heap(i + 1);
            fork_once();
            _exit(kept[0] != 7 || kept[32 * MIB - 1] != 7);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "child: %x", status);
        CHECK(kept[16 * MIB] == 7, "%s", part);
    }
    return 0;
}

static void request_moves(struct daemon *d) {
    struct session *s = d->session[0];
    struct tcl_control *control = control_of(s);
    uint32_t done = __atomic_load_n(&header_of(s)->moves_done, __ATOMIC_ACQUIRE);
    if (!header_of(s)->is_mover || done != control->moves_asked)
        return;
    control->moves[0] = (struct tcl_move){
        .addr = header_of(s)->range_base, .bytes = 256 * MIB, .node = ABSENT_NODE};
    control->move_count = 1;
    __atomic_store_n(&control->moves_asked, done + 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &control->moves_asked, 1 /* FUTEX_WAKE */, 1, NULL, NULL, 0);
}

static enum tcl_backing backing;

static void set_backing(struct session *s) {
    control_of(s)->backing = backing;
}

static void run(enum tcl_backing how, const char *name) {
    struct daemon d = {.prepare = set_backing, .each_turn = request_moves};
    backing = how;
    open_daemon(&d);
    int status = serve(&d, start_hosted(&d, name));
    CHECK(status == 0, "%s: wait status %x, stderr: %s", name, status, errors_of(&d));
    close_daemon(&d);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    run(TCL_BACKING_KERNEL, "kernel");
    run(TCL_BACKING_VMEM, "private");
    puts("vmem_filtered: under a filter that kills for unusual calls programs live on");
    return 0;
}
