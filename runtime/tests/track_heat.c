/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_heat.c: hot and cold small objects lie in blocks of their own, in the fastest and in the
 * slowest arena, for each way to state a temperature, in threads, in forked children, with checked
 * frees; hot ones in the slowest where the budget is used up.
 * In: programs that write down where their objects are, and stop. Out: each object's arena.
 */
#include "hazard.h"
#include "tiercel.h"
#include "tiercel_probe.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>

#define COUNT 20000u /* objects of a kind: 1.2 MiB, some twenty blocks */
#define BYTES 60u
#define THREADS 4
/* A thread's first allocation makes its heap, and is no hot or cold one. */
#define IS_FIRST(i) ((i) % (COUNT / THREADS) == 0)
/* A thread's first block may be in any arena that mimalloc has: then it makes another. */
#define IS_EARLY(i) ((i) % (COUNT / THREADS) < 65536 / BYTES)

enum kind { HOT, COLD, COMPILED_HOT, COMPILED_COLD, NEWED_HOT, NEWED_COLD, PLAIN, KINDS };
struct places {
    uint64_t of[KINDS][COUNT];
};

static unsigned char *objects[KINDS][COUNT];
static void *(*hinted)(size_t, uint8_t); /* C++'s operator new with a hint */
static void *(*small)(size_t, uint32_t, void (*)(void *));
static void *(*of_class)(size_t, enum tiercel_temperature);

static void find_calls(void) {
    *(void **)&hinted = dlsym(RTLD_DEFAULT, "_Znwm12__hot_cold_t");
    *(void **)&small = dlsym(RTLD_DEFAULT, "tiercel_probe_small");
    *(void **)&of_class = dlsym(RTLD_DEFAULT, "tiercel_malloc_class");
    CHECK(hinted && small && of_class, "not exported");
}

/* As compiled code has it. */
static unsigned char *compiled(uint32_t what) {
    void *p = small(BYTES, what, free);
    return p ? p : what & TIERCEL_PROBE_ZEROED ? calloc(1, BYTES) : malloc(BYTES);
}

static unsigned char *make(enum kind kind) {
    switch (kind) {
    case HOT:
        return of_class(BYTES, TIERCEL_HOT);
    case COLD:
        return of_class(BYTES, TIERCEL_COLD);
    case COMPILED_HOT:
        return compiled(TIERCEL_HOT);
    case COMPILED_COLD: {
        unsigned char *p = compiled(TIERCEL_COLD | TIERCEL_PROBE_ZEROED);
        for (unsigned at = 0; at < BYTES; at++)
            CHECK(!p[at], "not zero");
        return p;
    }
    case NEWED_HOT:
        return hinted(BYTES, 254);
    case NEWED_COLD:
        return hinted(BYTES, 1);
    default:
        return hinted(BYTES, 128);
    }
}

static void fill(unsigned first, unsigned end) {
    for (unsigned i = first; i < end; i++)
        for (enum kind kind = 0; kind < KINDS; kind++) {
            objects[kind][i] = make(kind);
            CHECK(objects[kind][i] && (uintptr_t)objects[kind][i] % 16 == 0, "kind %d", kind);
            memset(objects[kind][i], (int)kind + 1, BYTES);
        }
}

static void drop(unsigned first, unsigned end) {
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (unsigned i = first; i < end; i++) {
            for (unsigned at = 0; at < BYTES; at++)
                CHECK(objects[kind][i][at] == kind + 1, "object %u of kind %d", i, kind);
            free(objects[kind][i]);
        }
}

static void elsewhere(void *p) {
    (void)p;
}

/* What is not small, of no temperature, or freed elsewhere, is not of these heaps. */
static void refused(void) {
    errno = 4711;
    CHECK(!small(4096, TIERCEL_HOT, free) && !small(SIZE_MAX, TIERCEL_HOT, free), "not small");
    CHECK(!small(BYTES, 0, free) && !small(BYTES, 3, free) && !small(BYTES, UINT32_MAX, free),
          "of no temperature");
    CHECK(!small(BYTES, TIERCEL_HOT, NULL) && !small(BYTES, TIERCEL_HOT, elsewhere),
          "freed elsewhere");
    CHECK(errno == 4711, "errno %d", errno);
    void *large = of_class(100000, TIERCEL_COLD), *none = of_class(0, TIERCEL_HOT);
    CHECK(large && malloc_usable_size(large) >= 100000 && none, "no memory");
    free(large);
    free(none);
    CHECK(!of_class(SIZE_MAX, TIERCEL_HOT) && errno == ENOMEM, "errno %d", errno);
}

static void write_down(void) {
    int fd = open(getenv("TIERCEL_TEST_PLACES"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(write(fd, objects, sizeof(objects)) == sizeof(objects));
    close(fd);
    raise(SIGSTOP);
}

/* ---- The hosted programs --------------------------------------------------------------------- */

static void *fill_part(void *number) {
    unsigned part = (unsigned)(uintptr_t)number;
    fill(part * (COUNT / THREADS), (part + 1) * (COUNT / THREADS));
    return NULL;
}
/* Frees what another thread made, which may have ended. */
static void *drop_part(void *number) {
    unsigned part = ((unsigned)(uintptr_t)number + 1) % THREADS;
    drop(part * (COUNT / THREADS), (part + 1) * (COUNT / THREADS));
    return NULL;
}

static void *forks(void *unused) {
    for (int i = 0; i < 10; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            fill(0, COUNT / 8);
            drop(0, COUNT / 8);
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child: %x", status);
    }
    return unused;
}

static int hosted(const char *part) {
    find_calls();
    refused();
    if (!strcmp(part, "children")) { /* while another thread allocates */
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, forks, NULL));
        fill(COUNT / 2, COUNT);
        pthread_join(thread, NULL);
        drop(COUNT / 2, COUNT);
    }
    bool has_threads = !strcmp(part, "threads");
    has_threads ? run_in_threads(THREADS, fill_part) : fill(0, COUNT);
    write_down();
    has_threads ? run_in_threads(THREADS, drop_part) : drop(0, COUNT);
    return 0;
}

/* ---- The test -------------------------------------------------------------------------------- */

static struct places *places;
static uint8_t arena_of[KINDS][COUNT];
static uint64_t block_of[KINDS][COUNT];

/* Of the objects in the blocks of the table: their arenas. */
static void find_arenas(struct session *s) {
    struct tcl_run *runs = (void *)(s->base + TCL_RUNS_AT);
    uint64_t base = header_of(s)->range_base;
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (unsigned i = 0; i < COUNT; i++) {
            uint64_t page = (places->of[kind][i] - base) / TCL_PAGE, first = page;
            while (first > 0 && page - first < 64 && !runs[first].shape)
                first--;
            CHECK(runs[first].shape && runs[first].identity & TCL_BLOCK, "kind %d in no block",
                  kind);
            arena_of[kind][i] = (uint8_t)(runs[first].identity >> 8);
            block_of[kind][i] = first;
        }
}

static bool is_hot(enum kind kind) {
    return kind == HOT || kind == COMPILED_HOT || kind == NEWED_HOT;
}

static int by_number(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* No block has two temperatures. */
static void check_apart(const char *part) {
    static uint64_t hot[3 * COUNT];
    unsigned count = 0;
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (unsigned i = 0; is_hot(kind) && i < COUNT; i++)
            if (!IS_FIRST(i))
                hot[count++] = block_of[kind][i];
    qsort(hot, count, sizeof(*hot), by_number);
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (unsigned i = 0; !is_hot(kind) && i < COUNT; i++)
            CHECK(!bsearch(&block_of[kind][i], hot, count, sizeof(*hot), by_number),
                  "%s: object %u of kind %d is among hot ones", part, i, kind);
}

static void check(const char *part, bool has_room, bool is_secure) {
    struct daemon d = {.prepare = has_room ? with_room : without_room};
    char path[] = "/tmp/tiercel-places-XXXXXX";
    int fd = mkstemp(path);
    setenv("TIERCEL_TEST_PLACES", path, 1);
    if (is_secure)
        setenv("TIERCEL_SECURE_HEAP", "1", 1);
    open_daemon(&d);
    pid_t pid = start_hosted(&d, part);
    unsetenv("TIERCEL_SECURE_HEAP");
    struct session *s = first_session(&d);
    wait_stop(pid);
    CHECK(read(fd, places, sizeof(*places)) == sizeof(*places));
    close(fd);
    unlink(path);
    find_arenas(s);
    check_apart(part);
    for (enum kind kind = 0; kind < PLAIN; kind++)
        for (unsigned i = 0; i < COUNT; i++)
            CHECK(IS_EARLY(i) || arena_of[kind][i] == (is_hot(kind) && has_room ? 0 : 1),
                  "%s: object %u of kind %d is in arena %u", part, i, kind, arena_of[kind][i]);
    kill(pid, SIGCONT);
    int status = serve(&d, pid);
    CHECK(status == 0, "%s: wait status %x, stderr: %s", part, status, errors_of(&d));
    for (int i = 0; i < d.sessions; i++)
        check_objects(d.session[i]);
    close_daemon(&d);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    places =
        mmap(NULL, sizeof(*places), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(places != MAP_FAILED);
    check("one thread", true, false);
    check("one thread", true, true);
    check("one thread", false, false);
    check("threads", true, false);
    check("children", true, false);
    printf("track_heat: hot and cold objects apart, by call, by compiler and by hint of new\n");
    return 0;
}
