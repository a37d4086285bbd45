/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_limit_set.c: a program that limits its own address space after it has begun: threads start,
 * libraries load, live objects stay, and the limit holds. By each of the calls that set limits;
 * twice; not in the parent of a child of vfork. Unseen, by a raw system call or from another
 * process: once the heap has opened memory, or a mapping of the program's was refused.
 */
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT ((rlim_t)1 << 30)
#define THREADS 16 /* 128 MiB of stacks */
#define OBJECTS 200
#define PIECE ((size_t)16 << 20)

static const char *const calls[] = {"setrlimit", "setrlimit64", "prlimit",  "prlimit64",
                                    "raw",       "foreign",     "raw, mmap"};
#define UNSEEN 4 /* the first of those that the runtime does not see */
#define CALLS (sizeof(calls) / sizeof(*calls))

static void set_unseen(size_t call, const struct rlimit *limit) {
    if (strcmp(calls[call], "foreign")) {
        CHECK(!syscall(SYS_prlimit64, 0, RLIMIT_AS, limit, NULL));
    } else {
        pid_t self = getpid(), pid = fork();
        if (pid == 0)
            _exit(syscall(SYS_prlimit64, self, RLIMIT_AS, limit, NULL) != 0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
    }
    if (strcmp(calls[call], "raw, mmap") == 0) {
        void *p = mmap(NULL, PIECE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(p != MAP_FAILED && !munmap(p, PIECE));
        return;
    }
    char *p = malloc(4 * PIECE);
    CHECK(p);
    free(p);
}

static void set_limit(size_t call, rlim_t bytes) {
    struct rlimit limit = {bytes, RLIM_INFINITY};
    struct rlimit64 limit64 = {bytes, RLIM64_INFINITY};
    if (call >= UNSEEN) {
        set_unseen(call, &limit);
        return;
    }
    int result = call == 0   ? setrlimit(RLIMIT_AS, &limit)
                 : call == 1 ? setrlimit64(RLIMIT_AS, &limit64)
                 : call == 2 ? prlimit(getpid(), RLIMIT_AS, &limit, NULL)
                             : prlimit64(0, RLIMIT_AS, &limit64, NULL);
    CHECK(!result, "%s", calls[call]);
}

static size_t address_space(void) {
    size_t pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%zu", &pages) == 1);
    fclose(file);
    return pages * 4096;
}

static void *allocates(void *unused) {
    (void)unused;
    for (size_t bytes = 16; bytes < 1 << 20; bytes *= 2) {
        char *p = malloc(bytes);
        CHECK(p, "%zu bytes", bytes);
        memset(p, 1, bytes);
        free(p);
    }
    return NULL;
}

static void start_threads(void) {
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&thread[i], NULL, allocates, NULL), "thread %d", i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

static unsigned char *object[OBJECTS];
static size_t size_of(int i) {
    return (size_t)(i + 1) * 1237;
}

static void make_objects(void) {
    for (int i = 0; i < OBJECTS; i++) {
        CHECK((object[i] = malloc(size_of(i))) != NULL);
        memset(object[i], i, size_of(i));
    }
}

/* And changes them, so that freed memory is used again. */
static void check_objects(void) {
    for (int i = 0; i < OBJECTS; i++) {
        for (size_t at = 0; at < size_of(i); at++)
            CHECK(object[i][at] == (unsigned char)i, "object %d at %zu", i, at);
        CHECK((object[i] = realloc(object[i], size_of(i) + 50000)) != NULL);
        free(object[i]);
    }
}

static void check_limit(rlim_t limit) {
    static void *piece[LIMIT / PIECE + 1];
    size_t got = 0;
    while (got < sizeof(piece) / sizeof(*piece) && (piece[got] = malloc(PIECE)))
        memset(piece[got++], 1, 4096);
    CHECK(got * PIECE < limit && got * PIECE > limit / 4, "%zu MiB", got * PIECE >> 20);
    while (got)
        free(piece[--got]);
}

static void limited(size_t call) {
    make_objects();
    set_limit(call, LIMIT);
    CHECK(address_space() < LIMIT / 2, "%zu MiB are reserved", address_space() >> 20);
    start_threads();
    CHECK(dlopen("libresolv.so.2", RTLD_NOW), "%s", dlerror());
    check_limit(LIMIT);
    check_objects();
    make_objects();
    set_limit(call, LIMIT / 2);
    start_threads();
    check_limit(LIMIT / 2);
    check_objects();
}

static void in_vforked_child(void) {
    size_t before = address_space();
    pid_t pid = vfork();
    if (pid == 0) {
        set_limit(0, LIMIT);
        _exit(0);
    }
    CHECK(waitpid(pid, NULL, 0) == pid);
    CHECK(address_space() >= before, "%zu of %zu bytes are left", address_space(), before);
}

int main(void) {
    free(malloc(100000));
    in_vforked_child();
    for (size_t call = 0; call < CALLS; call++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            limited(call);
            exit(0);
        }
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "%s: %x", calls[call], status);
    }
    puts("alloc_limit_set: threads, libraries and objects under limits that the program sets");
    return 0;
}
