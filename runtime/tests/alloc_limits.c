/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_limits.c: a process that may have little: RLIMIT_AS, RLIMIT_DATA, mappings that fail.
 * In: the preloaded library. Out: one line, 0 when malloc fails cleanly and works again after.
 * Knows nothing of how address space is reserved.
 *
 * The program runs itself again under each limit, so that the library starts with it.
 */
#include "check.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int fail(const char *what) {
    return fprintf(stderr, "%s\n", what), 1;
}

/* Allocates `bytes` at a time until there is no more, frees all, and does it again. */
static int exhaust(size_t bytes, size_t expect) {
    for (int round = 0; round < 3; round++) {
        void **head = NULL;
        size_t count = 0;
        errno = 0;
        for (void **p; (p = malloc(bytes)) != NULL; head = p, count++) {
            *p = head;
            ((char *)p)[bytes - 1] = 1;
            if (count * bytes > (size_t)8 << 30)
                return fail("the limit was not felt");
        }
        if (errno != ENOMEM)
            return fail("no ENOMEM");
        if (count * bytes < expect) {
            fprintf(stderr, "round %d: only %zu MiB in pieces of %zu\n", round, count * bytes >> 20,
                    bytes);
            return 1;
        }
        while (head) {
            void **next = *head;
            free(head);
            head = next;
        }
    }
    return 0;
}

static int work(void) {
    char *p = NULL;
    for (size_t bytes = 10; bytes < 4 << 20; bytes += bytes / 5 + 1) {
        if (!(p = realloc(p, bytes)))
            return fail("realloc");
        p[bytes - 1] = 1;
    }
    free(p);
    for (int i = 0; i < 20000; i++) {
        char *q = calloc(1, (size_t)(i * 37 % 70000 + 1));
        if (!q || q[i * 37 % 70000])
            return fail("calloc");
        q[0] = 1;
        free(q);
    }
    return 0;
}

/* From here on the kernel refuses mmap and mremap with ENOMEM. */
static void refuse_mappings(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        exit(fail("seccomp"));
}

/* Defect: objects outside the heap's range that realloc moves to ever new addresses filled the
 * table of these objects, and then the search for any other pointer did not end. */
static int move_far(void) {
    enum { MOVES = 600, BYTES = 257 * 4096, GROWN = 515 * 4096 };
    extern void *__libc_malloc(size_t);
    char *p = malloc(BYTES);
    int moved = 0;
    for (int i = 0; i < MOVES; i++) {
        /* The neighbour keeps it from growing in place, and the old place from being reused. */
        void *neighbour = mmap(p + BYTES, 4096, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        char *to = realloc(p, GROWN);
        if (!to || (neighbour == MAP_FAILED && errno != EEXIST))
            return fail("realloc of a far object");
        moved += to != p;
        p = realloc(to, BYTES);
        if (p != to)
            return fail("a far object does not shrink in place");
    }
    if (moved < MOVES / 2)
        return fail("too few moves: this test would check nothing");
    alarm(HANG_S);
    free(__libc_malloc(100)); /* found in no table */
    alarm(0);
    free(p);
    return 0;
}

static int child(const char *limit, size_t pieces) {
    if (strcmp(limit, "far") == 0)
        return move_far();
    if (strcmp(limit, "seccomp") == 0) {
        free(malloc(5000)); /* opens a first piece of each layer */
        char *big = malloc(100);
        refuse_mappings();
        errno = 0;
        if (malloc((size_t)3 << 30) != NULL || errno != ENOMEM)
            return fail("malloc without mmap");
        char *p = malloc(50); /* there is memory left for this */
        if (!p || !(p = realloc(p, 5000)))
            return fail("small malloc without mmap");
        free(p);
        free(big);
        return 0;
    }
    if (work())
        return 1;
    if (pieces == 0)
        return 0;
    return exhaust(pieces, (size_t)150 << 20) || work();
}

static int run(const char *self, const char *name, int resource, size_t bytes, const char *pieces) {
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = {bytes, bytes};
        if (bytes && setrlimit((__rlimit_resource_t)resource, &limit) != 0)
            _exit(9);
        execl(self, self, name, pieces, NULL);
        _exit(9);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    if (status != 0)
        fprintf(stderr, "under %s, pieces of %s: status %x\n", name, pieces, (unsigned)status);
    return status != 0;
}

int main(int argc, char **argv) {
    if (argc > 2)
        return child(argv[1], strtoull(argv[2], NULL, 10));
    int bad = run(argv[0], "none", 0, 0, "0") + run(argv[0], "seccomp", 0, 0, "0");
    const char *pieces[] = {"200", "9000", "100000", "1000000", "50000000"};
    for (int i = 0; i < 5; i++)
        bad += run(argv[0], "address-space", RLIMIT_AS, (size_t)300 << 20, pieces[i]) +
               run(argv[0], "data", RLIMIT_DATA, (size_t)300 << 20, pieces[i]);
    bad += run(argv[0], "far", RLIMIT_AS, (size_t)300 << 20, "0");
    printf("limits: %d of 13 runs failed\n", bad);
    return bad != 0;
}
