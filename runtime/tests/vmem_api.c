/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_api.c: edge cases of vregions: bounds, rights, parts, refusals; and moves without a
 * userfaultfd.
 */
#include "tiercel.h"
#include "vregion.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define ABSENT_NODE 900 /* no machine has this node */
#define RW (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)
#define REFUSED(call, error) CHECK((errno = 0, (call) == -1) && errno == (error))

static char *make(size_t bytes, int flags) {
    char *region = tiercel_vregion_register(NULL, bytes, RW, PRIVATE | flags, -1, 0);
    CHECK(region != MAP_FAILED);
    return region;
}

static sigjmp_buf back;
static void jump(int signal) {
    siglongjmp(back, signal);
}

static bool faults(volatile char *at, bool write) {
    signal(SIGSEGV, jump);
    if (sigsetjmp(back, 1))
        return true;
    if (write)
        *at = 1;
    else
        (void)*at;
    return false;
}

static void bounds_and_kinds(void) {
    char *region = make(100000, 16 << 26);
    CHECK((uintptr_t)region % 65536 == 0);
    region[131071] = 1; /* rounded up to vpages */
    CHECK(tiercel_vregion_node(region) >= 0);
    REFUSED(tiercel_vregion_migrate(region, 2 * MIB, 0), EINVAL);
    REFUSED(tiercel_vregion_migrate(region, 65536, -1), EINVAL);
    REFUSED(tiercel_vregion_migrate(region, 65536, 1024), EINVAL);
    REFUSED(tiercel_vregion_node(&region), EINVAL);
    REFUSED(tiercel_vregion_release(&back, 4096), EINVAL);
    REFUSED(tiercel_vregion_await(99), EINVAL);
    REFUSED(munmap(region, 4096), EINVAL); /* a part of a vpage */
    CHECK(tiercel_vregion_register(NULL, 0, RW, PRIVATE, -1, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(tiercel_vregion_register(NULL, MIB, RW, PRIVATE | 30 << 26, -1, 0) == MAP_FAILED);
    CHECK(!tiercel_vregion_release(region, 131072) && faults(region, false));
    char *fixed = make(MIB, 0);
    fixed[5] = 5;
    CHECK(tiercel_vregion_register(fixed, MIB, RW, PRIVATE | MAP_FIXED, -1, 0) == fixed);
    CHECK(fixed[5] == 0 && !tiercel_vregion_release(fixed, MIB));
}

/* Files and shared memory are passed to mmap. */
static void passed_through(void) {
    int fd = memfd_create("file", 0);
    CHECK(fd >= 0 && write(fd, "hello", 5) == 5 && !ftruncate(fd, 4096));
    char *file = tiercel_vregion_register(NULL, 4096, RW, MAP_SHARED, fd, 0);
    CHECK(file != MAP_FAILED && !memcmp(file, "hello", 5));
    file[0] = 'j';
    char read_back[5];
    CHECK(pread(fd, read_back, 5, 0) == 5 && read_back[0] == 'j');
    REFUSED(tiercel_vregion_migrate(file, 4096, 0), EINVAL);
    CHECK(!munmap(file, 4096) && !close(fd));
}

static void parts(void) {
    char *region = make(4 * MIB, 0);
    memset(region, 7, 4 * MIB);
    CHECK(!tiercel_vregion_migrate(region + MIB, MIB, ABSENT_NODE));
    CHECK(!munmap(region + MIB / 2, MIB));
    CHECK(faults(region + MIB / 2, false) && !faults(region + MIB / 2 - 1, true));
    CHECK(tiercel_vregion_node(region + 2 * MIB) != ABSENT_NODE && region[2 * MIB] == 7);
    CHECK(tiercel_vregion_node(region + 2 * MIB - 1) == ABSENT_NODE && region[2 * MIB - 1] == 7);
    REFUSED(tiercel_vregion_migrate(region, 4 * MIB, 0), EINVAL); /* there is a hole */
    char *other = mmap(region + 3 * MIB, 4096, RW, PRIVATE | MAP_FIXED, -1, 0);
    CHECK(other == region + 3 * MIB && other[0] == 0 && other[4096] == 7);
    REFUSED(tiercel_vregion_node(other), EINVAL);
    CHECK(mremap(region, 4096, 8192, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    CHECK(!munmap(region, 4 * MIB) && faults(region, false));
    char *again = make(4 * MIB, 0);
    for (size_t i = 0; i < 4 * MIB; i++)
        CHECK(again[i] == 0); /* freed memory is zeroed before it is reused */
    CHECK(!tiercel_vregion_release(again, 4 * MIB));
}

static void rights(void) {
    char *region = make(4 * MIB, 0);
    memset(region, 3, 4 * MIB);
    CHECK(!mprotect(region + MIB, MIB, PROT_READ) && !mprotect(region + 3 * MIB, MIB, PROT_NONE));
    CHECK(!tiercel_vregion_migrate(region, 4 * MIB, ABSENT_NODE));
    CHECK(faults(region + MIB, true) && !faults(region + MIB, false) && !faults(region, true));
    CHECK(faults(region + 3 * MIB, false) && !faults(region + 2 * MIB, true));
    CHECK(!mprotect(region, 4 * MIB, RW) && region[4 * MIB - 1] == 3 && region[MIB + 5] == 3);
    CHECK(!tiercel_vregion_migrate(region, 4 * MIB, 0) && region[4 * MIB - 1] == 3);
    CHECK(!faults(region + MIB, true) && !faults(region + 3 * MIB, true));
    CHECK(!tiercel_vregion_release(region, 4 * MIB));
}

/* Contents stay right when a move back copies only what was written since. */
static void shadows(void) {
    char *region = make(8 * MIB, 0);
    int home = tiercel_vregion_node(region);
    for (int round = 0; round < 20; round++) {
        memset(region + (size_t)(round + 1000) * 4096, round, 4096);
        CHECK(!tiercel_vregion_replicate(region, 8 * MIB, round % 2 ? home : ABSENT_NODE));
        memset(region + (size_t)round * 4096 * 7, round + 100, 4096);
        CHECK(!tiercel_vregion_migrate(region, 8 * MIB, round % 2 ? home : ABSENT_NODE));
        for (int i = 0; i < round; i++)
            CHECK(region[(size_t)i * 4096 * 7 + 9] == (char)(i + 100));
    }
    CHECK(!tiercel_vregion_bind(region, 8 * MIB, ABSENT_NODE) &&
          tiercel_vregion_node(region) == ABSENT_NODE);
    CHECK(!tiercel_vregion_release(region, 8 * MIB));
}

/* The program closes all descriptors: the next move opens new ones. */
static void closed_descriptors(void) {
    char *region = make(2 * MIB, 0);
    memset(region, 1, 2 * MIB);
    CHECK(!tiercel_vregion_migrate(region, 2 * MIB, ABSENT_NODE));
    CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
    for (int node = 0; node < 3; node++)
        CHECK(!tiercel_vregion_migrate(region, 2 * MIB, node % 2 ? ABSENT_NODE : 0) &&
              region[5] == 1);
    CHECK(!tiercel_vregion_release(region, 2 * MIB));
}

static void *idle(void *lock) {
    pthread_mutex_lock(lock);
    return NULL;
}

/* Under a seccomp filter accesses cannot be held up: with one thread vregions move all the same;
 * with several the kernel moves them, and refuses absent nodes. */
static void without_userfaultfd(void) {
    pid_t child = fork();
    if (child == 0) {
        install_filter();
        char *region = make(6 * MIB, 0);
        memset(region, 4, 6 * MIB);
        REFUSED(tiercel_vregion_replicate(region, MIB, ABSENT_NODE), ENOTSUP);
        CHECK(!tiercel_vregion_migrate(region, 6 * MIB, ABSENT_NODE) && region[6 * MIB - 1] == 4);
        CHECK(tiercel_vregion_node(region + 5 * MIB) == ABSENT_NODE);
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        pthread_t thread;
        pthread_mutex_lock(&lock);
        CHECK(!pthread_create(&thread, NULL, idle, &lock));
        CHECK(!tiercel_vregion_migrate(region, 6 * MIB, 0) && region[6 * MIB - 1] == 4);
        CHECK(tiercel_vregion_node(region) == 0);
        REFUSED(tiercel_vregion_migrate(region, 6 * MIB, ABSENT_NODE + 1), ENODEV);
        pthread_mutex_unlock(&lock);
        pthread_join(thread, NULL);
        exit(0);
    }
    expect_success(child);
}

/* Defect: where the userfaultfd could not be opened again, each move left a descriptor open. */
static void no_descriptor_is_left(void) {
    pid_t child = fork();
    if (child == 0) {
        char *region = make(MIB, 0);
        memset(region, 5, MIB);
        CHECK(!tiercel_vregion_migrate(region, MIB, ABSENT_NODE));
        CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
        install_filter(); /* under which none is opened */
        REFUSED(tiercel_vregion_migrate(region, MIB, 0), EMFILE);
        CHECK(region[9] == 5);
        for (int fd = 3; fd < 1024; fd++)
            CHECK(fcntl(fd, F_GETFD) == -1, "descriptor %d", fd);
        _exit(0);
    }
    expect_success(child);
}

/* Without descriptors, or without memory, a move fails and contents are kept. */
static void starved(void) {
    char *region = make(2 * MIB, 0);
    memset(region, 6, 2 * MIB);
    struct rlimit before, none = {3, 3};
    CHECK(!getrlimit(RLIMIT_NOFILE, &before));
    none.rlim_max = before.rlim_max;
    int null = open("/dev/null", O_RDONLY);
    CHECK(null >= 0 && !setrlimit(RLIMIT_NOFILE, &none));
    REFUSED(tiercel_vregion_migrate(region, 2 * MIB, ABSENT_NODE), EMFILE);
    CHECK(tiercel_vregion_node(region) != ABSENT_NODE && region[9] == 6);
    CHECK(!setrlimit(RLIMIT_NOFILE, &before));
    CHECK(!mlock(region, 64 << 10)); /* locked memory moves as well */
    CHECK(!tiercel_vregion_migrate(region, 2 * MIB, ABSENT_NODE) && region[9] == 6);
    CHECK(!getrlimit(RLIMIT_FSIZE, &before));
    none = (struct rlimit){MIB, before.rlim_max};
    CHECK(!setrlimit(RLIMIT_FSIZE, &none));
    CHECK(tiercel_vregion_register(NULL, 99 * MIB, RW, PRIVATE, -1, 0) == MAP_FAILED);
    CHECK(errno == EFBIG);
    REFUSED(tiercel_vregion_migrate(region, 2 * MIB, ABSENT_NODE + 1),
            EFBIG); /* a segment for it */
    CHECK(tiercel_vregion_node(region) == ABSENT_NODE && region[9] == 6);
    CHECK(!setrlimit(RLIMIT_FSIZE, &before));
    CHECK(!tiercel_vregion_migrate(region, 2 * MIB, ABSENT_NODE + 1) && region[9] == 6);
    CHECK(!tiercel_vregion_release(region, 2 * MIB) && !close(null));
}

int main(void) {
    bounds_and_kinds();
    passed_through();
    parts();
    rights();
    shadows();
    closed_descriptors();
    starved();
    no_descriptor_is_left();
    without_userfaultfd();
    puts("vregions: bounds, parts, rights, shadows and refusals are as promised");
    return 0;
}
