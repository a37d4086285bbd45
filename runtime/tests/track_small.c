/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_small.c: sites that keep much in small objects get blocks of their own, for each way to
 * allocate, in threads, in a forked child, with checked frees; others share blocks, and what each
 * keeps there is estimated. Blocks do not stay half empty where another site replaces objects.
 * In: programs that write down where their objects are, and stop. Out: each object's block has its
 * site. Knows nothing of how that is done.
 */
#include "hazard.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>

#define COUNT 40000u /* objects of a kind: 2.4 MiB, five times what a site shares blocks for */
#define BYTES 64u
#define FEW 500u /* objects of a kind that keeps little */
/* Percent of a kind's objects that must be in blocks of its own. Those before it is known to keep
 * much are not: it is known by 16 samples, each of 32 KiB in the mean. 1.34 MiB, 55% of a kind,
 * bring fewer once in a million times (Poisson). */
#define APART_PERCENT 45
#define THREADS 4

enum kind { PLAIN, ZEROED, RESIZED, ALIGNED, NEWED, OTHER, LITTLE, KINDS };
struct places {
    uint64_t of[KINDS][COUNT];
};

static void *objects[KINDS][COUNT];
static void *(*new)(size_t); /* C++'s */

__attribute__((noinline)) static void *plain(size_t bytes) {
    return malloc(bytes);
}
__attribute__((noinline)) static void *other(size_t bytes) {
    void *p = malloc(bytes);
    hazard_sink = p;
    return p;
}

/* Each kind has a line of its own, which makes it a site. */
__attribute__((noinline)) static void *make(enum kind kind) {
    void *p = NULL;
    switch (kind) {
    case PLAIN:
        return plain(BYTES);
    case ZEROED:
        p = calloc(1, BYTES);
        for (unsigned i = 0; i < BYTES; i++)
            CHECK(!((char *)p)[i], "not zero");
        return p;
    case RESIZED:
        p = malloc(BYTES / 4);
        memset(p, 7, BYTES / 4);
        p = realloc(p, BYTES);
        CHECK(((char *)p)[BYTES / 4 - 1] == 7, "not kept");
        return p;
    case ALIGNED:
        p = aligned_alloc(BYTES, BYTES);
        CHECK((uintptr_t)p % BYTES == 0, "not aligned");
        return p;
    case NEWED:
        return new (BYTES);
    case OTHER:
        return other(BYTES);
    default:
        return malloc(BYTES - 1);
    }
}

static void fill(unsigned first, unsigned end) {
    for (unsigned i = first; i < end; i++)
        for (int kind = 0; kind < KINDS; kind++)
            if (kind != LITTLE || i < FEW) {
                objects[kind][i] = make(kind);
                memset(objects[kind][i], kind + 1, BYTES - 1);
            }
}

static void drop(unsigned first, unsigned end) {
    for (int kind = 0; kind < KINDS; kind++)
        for (unsigned i = first; i < end; i++) {
            unsigned char *p = objects[kind][i];
            for (unsigned at = 0; p && at < BYTES - 1; at++)
                CHECK(p[at] == kind + 1, "object %u of kind %d at %u: %u", i, kind, at, p[at]);
            free(p);
            objects[kind][i] = NULL;
        }
}

static void write_down(void) {
    int fd = open(getenv("TIERCEL_TEST_PLACES"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (int kind = 0; kind < KINDS; kind++)
        CHECK(write(fd, objects[kind], sizeof(objects[kind])) == sizeof(objects[kind]));
    close(fd);
    raise(SIGSTOP);
}

/* ---- The hosted programs --------------------------------------------------------------------- */

static int in_one_thread(void) {
    fill(0, COUNT);
    write_down();
    drop(0, COUNT);
    return 0;
}

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

static int in_threads(void) {
    run_in_threads(THREADS, fill_part);
    write_down();
    run_in_threads(THREADS, drop_part);
    run_in_threads(THREADS, fill_part);
    run_in_threads(THREADS, drop_part);
    return 0;
}

static void *forks(void *unused) {
    (void)unused;
    for (int i = 0; i < 20; i++) {
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
    return NULL;
}

/* Forks while another thread allocates, and gets blocks apart. */
static int in_children(void) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, forks, NULL));
    fill(COUNT / 2, COUNT);
    pthread_join(thread, NULL);
    drop(COUNT / 2, COUNT);
    in_one_thread();
    return 0;
}

/* One site builds, another replaces three of four objects, in another order. */
static int replaces(void) {
    for (unsigned i = 0; i < COUNT; i++)
        memset(objects[PLAIN][i] = make(PLAIN), PLAIN + 1, BYTES - 1);
    for (unsigned n = 0; n < COUNT / 4 * 3; n++) {
        unsigned i = n * 7919u % COUNT; /* a prime: each object once */
        free(objects[PLAIN][i]);
        objects[PLAIN][i] = NULL;
        memset(objects[OTHER][i] = make(OTHER), OTHER + 1, BYTES - 1);
    }
    write_down();
    drop(0, COUNT);
    return 0;
}

/* ---- The test -------------------------------------------------------------------------------- */

static struct places *places;
static uint64_t apart_bytes, shared_bytes;
static uint32_t site_of[KINDS][COUNT];

/* Of the objects in this block: its site. */
static void enter(struct session *s, const struct known_object *block) {
    (void)s;
    if (block->bytes > 64 << 10)
        return;
    if (block->bytes == 64 << 10) /* or an aligned object, where frees are checked */
        *(block->site ? &apart_bytes : &shared_bytes) += block->bytes;
    for (int kind = 0; kind < KINDS; kind++)
        for (unsigned i = 0; i < COUNT; i++)
            if (places->of[kind][i] - block->addr < block->bytes)
                site_of[kind][i] = block->site;
}

/* The site of most of a kind's objects, and what share of them it has. */
static uint32_t main_site(enum kind kind, unsigned count, unsigned *percent) {
    static unsigned counts[TCL_SITES_MAX];
    uint32_t best = 0;
    memset(counts, 0, sizeof(counts));
    for (unsigned i = 0; i < count; i++)
        if (++counts[site_of[kind][i]] > counts[best])
            best = site_of[kind][i];
    *percent = counts[best] * 100 / count;
    return best;
}

static void check_kinds(struct session *s, const char *part) {
    uint32_t sites[KINDS];
    apart_bytes = shared_bytes = 0;
    memset(site_of, 0, sizeof(site_of));
    walk_table(s, enter);
    for (enum kind kind = 0; kind < KINDS; kind++) {
        unsigned percent;
        sites[kind] = main_site(kind, kind == LITTLE ? FEW : COUNT, &percent);
        if (kind == LITTLE) {
            CHECK(!sites[kind], "%s: a site that keeps little has blocks apart", part);
            continue;
        }
        CHECK(sites[kind] && percent >= APART_PERCENT, "%s: kind %d: %u%% are of site %u", part,
              kind, percent, sites[kind]);
        for (enum kind before = 0; before < kind; before++)
            CHECK(sites[before] != sites[kind], "%s: kinds %d and %d are one site", part, before,
                  kind);
    }
}

/* In blocks that sites share, every kind kept about as much until it got its own. */
static void check_estimates(struct session *s, const char *part) {
    const struct tcl_small *small = (void *)(s->base + TCL_SMALLS_AT);
    uint64_t live = 0, births = 0;
    for (uint32_t site = 1; site < header_of(s)->small_top; site++) {
        live += small[site].live_bytes;
        births += small[site].births;
        CHECK(small[site].lives <= small[site].births, "%s: site %u", part, site);
    }
    CHECK(births > 16, "%s: %lu births were sampled", part, births);
    /* Estimates of a hundred samples are right within a third. */
    CHECK(live > shared_bytes / 2 && live < shared_bytes * 2, "%s: %lu bytes live in %lu", part,
          live, shared_bytes);
}

/* Objects that replace another site's fill its blocks, which have no site then. */
static void check_replaced(struct session *s, const char *part) {
    static bool has_plain[TCL_SITES_MAX];
    apart_bytes = shared_bytes = 0;
    memset(site_of, 0, sizeof(site_of));
    memset(has_plain, 0, sizeof(has_plain));
    walk_table(s, enter);
    uint64_t all = apart_bytes + shared_bytes, live = (uint64_t)COUNT * BYTES;
    CHECK(all < live * 4 / 3, "%s: %lu bytes of blocks for %lu live", part, all, live);
    for (unsigned i = 0; i < COUNT; i++)
        has_plain[site_of[PLAIN][i]] = true;
    for (unsigned i = 0; i < COUNT; i++) {
        uint32_t site = site_of[OTHER][i];
        CHECK(!site || !has_plain[site], "%s: object %u counts for the site before", part, i);
    }
}

static void back_by_vregions(struct session *s) {
    control_of(s)->backing = TCL_BACKING_VMEM;
}

static void check(const char *part, bool is_secure) {
    struct daemon d = {.prepare = strcmp(part, "vregions") ? NULL : back_by_vregions};
    char path[] = "/tmp/tiercel-places-XXXXXX";
    int fd = mkstemp(path);
    setenv("TIERCEL_TEST_PLACES", path, 1);
    if (is_secure)
        setenv("TIERCEL_SECURE_HEAP", "1", 1);
    open_daemon(&d);
    pid_t pid = start_hosted(&d, part);
    unsetenv("TIERCEL_SECURE_HEAP");
    wait_stop(pid);
    CHECK(read(fd, places, sizeof(*places)) == sizeof(*places));
    close(fd);
    unlink(path);
    struct session *s = first_session(&d);
    drain(s);
    if (strcmp(part, "replaced")) {
        check_kinds(s, part);
        check_estimates(s, part);
    } else {
        check_replaced(s, part);
    }
    kill(pid, SIGCONT);
    int status = serve(&d, pid);
    CHECK(status == 0, "%s: wait status %x, stderr: %s", part, status, errors_of(&d));
    for (int i = 0; i < d.sessions; i++)
        check_objects(d.session[i]);
    printf("track_small: %s%s: %lu KiB in blocks apart, %lu KiB shared\n", part,
           is_secure ? ", checked frees" : "", apart_bytes >> 10, shared_bytes >> 10);
    close_daemon(&d);
}

int main(int argc, char **argv) {
    *(void **)&new = dlsym(RTLD_DEFAULT, "_Znwm");
    CHECK(new, "no operator new");
    if (argc > 1 && (!strcmp(argv[1], "one thread") || !strcmp(argv[1], "vregions")))
        return in_one_thread();
    if (argc > 1 && !strcmp(argv[1], "replaced"))
        return replaces();
    if (argc > 1)
        return strcmp(argv[1], "threads") ? in_children() : in_threads();
    places =
        mmap(NULL, sizeof(*places), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(places != MAP_FAILED);
    check("one thread", false);
    check("one thread", true);
    check("threads", false);
    check("children", false);
    check("vregions", false);
    check("replaced", false);
    check("replaced", true);
    return 0;
}
