/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_conformance.c: corner cases of the malloc family as in glibc, and defects of other
 * allocators, each by name.
 * In: the preloaded library. Out: one line, 0 when all hold.
 * Knows nothing of how the allocator works.
 */
#include <errno.h>
#include <gnu/libc-version.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int failures;
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: %s\n", __func__, __LINE__, #condition);                                 \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

static volatile size_t half = SIZE_MAX / 2 + 2; /* keeps the compiler from judging constants */
static const size_t sizes[] = {0,       1,       7,       8,       15,
                               16,      24,      100,     1000,    1024,
                               1025,    2047,    4095,    4096,    4097,
                               5000,    8192,    65536,   70000,   262144,
                               262145,  300000,  1 << 20, 2 << 20, (2 << 20) + 1,
                               5 << 20, 40 << 20};
#define SIZES (sizeof sizes / sizeof *sizes)

static int full_of(const char *p, size_t bytes, char value) {
    for (size_t i = 0; i < bytes; i++)
        if (p[i] != value)
            return 0;
    return 1;
}

/* Defect: calloc overflow returning a pointer. */
static void calloc_overflow(void) {
    errno = 0;
    CHECK(calloc(half, 2) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(calloc(2, half) == NULL && errno == ENOMEM);
    errno = 0;
    char *p = malloc(10);
    CHECK(reallocarray(p, half, 2) == NULL && errno == ENOMEM);
    free(p);
    CHECK(calloc(0, half) != NULL);
}

/* Defect: malloc(SIZE_MAX - 4096) returning a pointer. */
static void too_large(void) {
    const size_t huge[] = {SIZE_MAX, SIZE_MAX - 4096, (size_t)PTRDIFF_MAX + 1, SIZE_MAX - 15};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        volatile size_t bytes = huge[i];
        char *p = malloc(100);
        void *q = NULL;
        memset(p, 5, 100);
        errno = 0;
        CHECK(malloc(bytes) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(calloc(1, bytes) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(realloc(p, bytes) == NULL && errno == ENOMEM && full_of(p, 100, 5));
        errno = 0;
        CHECK(memalign(64, bytes) == NULL && errno == ENOMEM);
        CHECK(posix_memalign(&q, 64, bytes) == ENOMEM && q == NULL);
        CHECK(aligned_alloc(4096, bytes) == NULL);
        CHECK(valloc(bytes) == NULL && pvalloc(bytes) == NULL);
        free(p);
    }
    errno = 0;
    volatile size_t most = PTRDIFF_MAX;
    CHECK(malloc(most) == NULL && errno == ENOMEM);
    CHECK(malloc(most / 2) == NULL && errno == ENOMEM);
}

/* Defect: malloc_usable_size always 0. Every byte of it may be written. */
static void usable_size(void) {
    char *p[SIZES];
    for (size_t i = 0; i < SIZES; i++) {
        p[i] = malloc(sizes[i]);
        size_t usable = malloc_usable_size(p[i]);
        CHECK(usable >= sizes[i]);
        memset(p[i], (int)i + 1, usable);
    }
    for (size_t i = 0; i < SIZES; i++) {
        CHECK(full_of(p[i], malloc_usable_size(p[i]), (char)(i + 1)));
        free(p[i]);
    }
    CHECK(malloc_usable_size(NULL) == 0);
}

/* Defect: posix_memalign and memalign not intercepted, and leaked at free. */
static void alignments(void) {
    for (size_t align = 8; align <= 64 << 20; align *= 2)
        for (size_t i = 0; i < SIZES; i += 2) {
            void *p = NULL;
            errno = 77;
            CHECK(posix_memalign(&p, align, sizes[i]) == 0 && errno == 77);
            CHECK(p && (uintptr_t)p % align == 0 && malloc_usable_size(p) >= sizes[i]);
            memset(p, 1, sizes[i]);
            p = realloc(p, sizes[i] + 1);
            CHECK(full_of(p, sizes[i], 1));
            free(p);
            p = aligned_alloc(align, sizes[i]);
            CHECK(p && (uintptr_t)p % align == 0);
            free(p);
            p = memalign(align, sizes[i]);
            CHECK(p && (uintptr_t)p % align == 0);
            free(p);
        }
    const size_t bad[] = {0, 1, 2, 4, 3, 12, 24, 100, 4097};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        void *p = &p, *same = p;
        errno = 77;
        CHECK(posix_memalign(&p, bad[i], 10) == EINVAL && p == same && errno == 77);
    }
    volatile size_t odd = 48;
    errno = 0;
    void *p = aligned_alloc(odd, 96);
    if (strtol(gnu_get_libc_version() + 2, NULL, 10) >= 38)
        CHECK(p == NULL && errno == EINVAL);
    else
        CHECK(p && (uintptr_t)p % 64 == 0); /* as memalign */
    free(p);
    p = memalign(odd, 10); /* rounded up to 64 */
    CHECK((uintptr_t)p % 64 == 0);
    free(p);
    volatile size_t most = (size_t)1 << 63;
    errno = 0;
    CHECK(memalign(most, 1) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(memalign(most + 1, 1) == NULL && errno == EINVAL);
    p = valloc(10);
    CHECK((uintptr_t)p % 4096 == 0);
    free(p);
    p = pvalloc(4097);
    CHECK((uintptr_t)p % 4096 == 0 && malloc_usable_size(p) >= 8192);
    free(p);
    for (size_t i = 0; i < SIZES; i++) {
        p = malloc(sizes[i]);
        CHECK(p && (uintptr_t)p % 16 == 0);
        free(p);
    }
}

/* Defect: NULL on a stale errno; and free must not touch it. */
static void errno_kept(void) {
    for (size_t i = 0; i < SIZES; i++) {
        errno = ENOMEM;
        char *p = malloc(sizes[i]);
        CHECK(p != NULL);
        errno = 1234;
        free(p);
        CHECK(errno == 1234);
    }
    errno = 1234;
    free(NULL);
    CHECK(errno == 1234);
}

static void size_zero(void) {
    void *p = malloc(0), *q = malloc(0), *r = calloc(0, 10);
    CHECK(p && q && r && p != q && q != r && p != r);
    free(q);
    free(r);
    CHECK(realloc(p, 0) == NULL); /* frees, as glibc */
    p = realloc(NULL, 0);
    CHECK(p != NULL);
    free(p);
    p = malloc(100000);
    CHECK(realloc(p, 0) == NULL);
}

static void zeroed(void) {
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < SIZES; i++) {
            char *p = calloc(1, sizes[i]);
            CHECK(full_of(p, sizes[i], 0));
            memset(p, 0xaa, malloc_usable_size(p));
            free(p);
            p = malloc(sizes[i] + 1); /* dirty memory of about that size for the next round */
            memset(p, 0xbb, sizes[i] + 1);
            free(p);
        }
}

/* Grows and shrinks through every layer and back; contents stay. */
static void reallocs(void) {
    for (size_t i = 0; i < SIZES; i++)
        for (size_t j = 0; j < SIZES; j++) {
            size_t from = sizes[i] + 1, to = sizes[j] + 1, both = from < to ? from : to;
            char *p = malloc(from);
            memset(p, 3, from);
            p = realloc(p, to);
            CHECK(p && full_of(p, both, 3) && malloc_usable_size(p) >= to);
            memset(p, 4, to);
            free(p);
        }
    char *p = NULL;
    for (size_t bytes = 1; bytes < 8 << 20; bytes += bytes / 3 + 1) {
        p = realloc(p, bytes);
        p[bytes - 1] = 9;
        p[bytes / 2] = 9;
    }
    free(p);
}

/* Defect: a hook library that reopens or writes stdout. Reports go to stderr or to the given file.
 */
static void reports(void) {
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
    struct mallinfo2 all = mallinfo2();
    char *p = malloc(64 << 20);
    CHECK(mallinfo2().uordblks >= all.uordblks + (64 << 20));
    free(p);
    /* Exact but for the rounding of sizes, and back again. */
    enum { COUNT = 10000, BYTES = 100 };
    static char *objects[COUNT];
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < COUNT; i++)
        objects[i] = malloc(BYTES);
    size_t grown = mallinfo2().uordblks - before;
    CHECK(grown >= COUNT * BYTES && grown < COUNT * BYTES * 5 / 4);
    for (int i = 0; i < COUNT; i++)
        free(objects[i]);
    CHECK(mallinfo2().uordblks == before);
    struct mallinfo2 end = mallinfo2();
    CHECK(end.arena == end.uordblks + end.fordblks && end.ordblks > 0);
    malloc_trim(0);
    char text[2000] = "";
    FILE *to = fmemopen(text, sizeof text, "w");
    CHECK(malloc_info(0, to) == 0 && malloc_info(1, to) == EINVAL);
    fclose(to);
    CHECK(strncmp(text, "<malloc version=", 16) == 0);
    CHECK(strstr(text, "<system type=\"current\"") && strstr(text, "<aspace type=\"total\""));
}

static void *print_while_cancelled(void *unused) {
    pthread_cancel(pthread_self());
    malloc_stats();
    pthread_testcancel();
    return unused;
}

/* Defect: malloc_stats ends a thread that is to be cancelled in the middle of its text. */
static void statistics(void) {
    int saved = dup(STDERR_FILENO), ends[2];
    CHECK(saved >= 0 && pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, print_while_cancelled, NULL) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    dup2(saved, STDERR_FILENO);
    close(ends[1]);
    char text[1000] = "";
    CHECK(read(ends[0], text, sizeof text - 1) > 0 && strstr(text, "in use bytes"));
    CHECK(strstr(text, "max mmap bytes"));
    close(ends[0]);
    close(saved);
}

static long resident_kib(void) {
    long size, resident;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &resident) != 2)
        return -1;
    fclose(f);
    return resident * 4;
}

/* Defect: leaks and growth. Rounds of the same work need no more memory than the first few. */
static void no_growth(void) {
    long early = 0;
    for (int round = 0; round < 60; round++) {
        void *p[300];
        for (int i = 0; i < 300; i++)
            memset(p[i] = memalign(1 << (4 + i % 10), (size_t)(i * 997 % 90000 + 1)), 1,
                   (size_t)(i * 997 % 90000 + 1));
        for (int i = 0; i < 300; i++)
            free(p[i * 7 % 300]);
        if (round == 10)
            early = resident_kib();
    }
    CHECK(resident_kib() <= early + 4096);
    malloc_trim(0);
    CHECK(resident_kib() <= early);
}

int main(void) {
    CHECK(errno == 0); /* what the library tried before is not the program's error */
    calloc_overflow();
    too_large();
    usable_size();
    alignments();
    errno_kept();
    size_zero();
    zeroed();
    reallocs();
    reports();
    statistics();
    no_growth();
    printf("the malloc family in its corners: %d failures\n", failures);
    return failures != 0;
}
