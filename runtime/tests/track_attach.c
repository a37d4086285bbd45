/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_attach.c: when a process attaches, and that nothing of it waits for the daemon: programs
 * and children that stay small do not attach and are counted; what was born before is in the object
 * table; a daemon that never accepts holds up no program; a child of vfork does not attach; threads
 * that allocate at the moment of the attach find all that it made.
 */
#include "hazard.h"
#include "tiercel.h"
#include <stdatomic.h>
#include <sys/resource.h>

#define FROM (256u << 10) /* of the offer: what a process allocates before it attaches */
#define EARLY_BYTES 12288u
#define EARLY 8 /* 96 KiB */
#define LARGE (1u << 20)

static long voluntary_switches(void) {
    struct rusage usage;
    CHECK(!getrusage(RUSAGE_SELF, &usage));
    return usage.ru_nvcsw;
}

static void large(void) {
    hazard_sink = malloc(LARGE);
}

static void many_small(void) {
    for (unsigned i = 0; i < 2 * LARGE / 64; i++)
        hazard_sink = malloc(64);
}

static void in_child(void (*action)(void)) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        action();
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "%x", status);
}

static void little(void) {
    hazard_sink = malloc(4096); /* a run: small objects are no births of their own */
}

static void nothing(void) {}

static void early_objects(void) {
    for (int i = 0; i < EARLY; i++)
        hazard_sink = malloc(EARLY_BYTES);
    large();
    await_greeting();
}

/* The child allocates in its parent's memory. */
static void by_vfork(void) {
    pid_t pid = vfork();
    if (pid == 0) {
        hazard_sink = malloc(LARGE);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "%x", status);
}

#define THREADS 4
static atomic_int threads_ready;
static void *allocate_at_once(void *unused) {
    (void)unused;
    atomic_fetch_add(&threads_ready, 1);
    while (atomic_load(&threads_ready) < THREADS)
        sched_yield();
    for (int i = 0; i < 32; i++) /* 2 MiB: the attach is due after the fourth */
        free(malloc(FROM / 4));
    return NULL;
}

static void many_threads(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, allocate_at_once, NULL));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    await_greeting();
}

static void does_not_wait(void) {
    long before = voluntary_switches();
    large();
    CHECK(voluntary_switches() == before, "it waited");
}

static int hosted(const char *part) {
    if (!strcmp(part, "small"))
        little(), in_child(little), in_child(nothing);
    else if (!strcmp(part, "early"))
        early_objects();
    else if (!strcmp(part, "slots"))
        many_small();
    else if (!strcmp(part, "child"))
        large(), await_greeting(), in_child(large);
    else if (!strcmp(part, "vfork"))
        by_vfork();
    else if (!strcmp(part, "threads"))
        many_threads();
    else if (!strcmp(part, "asks"))
        CHECK(tiercel_is_hosted(), "not hosted");
    else
        does_not_wait();
    return 0;
}

static void run(struct daemon *d, const char *part) {
    open_daemon(d);
    d->offer->attach_bytes = FROM;
    d->offer->attach_ms = UINT32_MAX;
    int status = serve(d, start_hosted(d, part));
    CHECK(status == 0 && !*errors_of(d), "%s: %x, %s", part, status, errors_of(d));
}

static void check_counts(struct daemon *d, const char *part, uint64_t began, uint64_t attached) {
    CHECK(d->offer->began == began && d->offer->attached == attached && !d->offer->failed,
          "%s: %lu began, %lu attached, %lu failed", part, d->offer->began, d->offer->attached,
          d->offer->failed);
    CHECK(d->sessions == (int)attached, "%s: %d sessions", part, d->sessions);
    for (int i = 0; i < d->sessions; i++)
        check_objects(d->session[i]);
}

static int early_found;
static void count_early(struct session *s, const struct known_object *found) {
    (void)s;
    early_found += found->bytes == EARLY_BYTES && !found->site;
}

static void attaches(void) {
    static const struct {
        const char *part;
        uint64_t began, attached;
    } cases[] = {
        {"small", 2, 0}, /* the child that allocates counts, the other does not */
        {"early", 1, 1}, {"slots", 1, 1}, {"child", 2, 2}, {"vfork", 1, 0}, {"asks", 1, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct daemon d = {0};
        run(&d, cases[i].part);
        check_counts(&d, cases[i].part, cases[i].began, cases[i].attached);
        early_found = 0;
        if (cases[i].attached)
            walk_table(d.session[0], count_early);
        if (!strcmp(cases[i].part, "early"))
            CHECK(early_found == EARLY, "%d", early_found);
        if (!strcmp(cases[i].part, "child"))
            CHECK(d.session[1]->hello.parent_pid == (uint32_t)d.session[0]->pid, "parent unknown");
        close_daemon(&d);
    }
}

/* The moment is short: one attach in some dozens hits it. */
static void attaches_among_threads(void) {
    for (int i = 0; i < 200; i++) {
        struct daemon d = {0};
        run(&d, "threads");
        check_counts(&d, "threads", 1, 1);
        close_daemon(&d);
    }
}

/* As many as its queue of connections holds, and then some. */
static void never_accepts(void) {
    struct daemon d = {0};
    open_daemon(&d);
    d.offer->attach_bytes = FROM;
    d.offer->attach_ms = UINT32_MAX;
    const uint64_t programs = 80;
    for (uint64_t i = 0; i < programs; i++) {
        int status;
        pid_t pid = start_hosted(&d, "stopped");
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "%x %s", status, errors_of(&d));
    }
    struct tcl_offer *offer = d.offer;
    CHECK(offer->began == programs && offer->attached + offer->failed == programs &&
              offer->failed > 0 && offer->failed_errno == EAGAIN,
          "%lu began, %lu attached, %lu failed: %s", offer->began, offer->attached, offer->failed,
          strerror((int)offer->failed_errno));
    close_daemon(&d);
}

/* Where it cannot be written, the offer holds nevertheless. Root can write everywhere. */
static void is_readable_only(void) {
    struct daemon d = {0};
    open_daemon(&d);
    d.offer->attach_bytes = FROM;
    d.offer->is_counted = 0;
    int status = serve(&d, start_hosted(&d, "early"));
    CHECK(status == 0 && d.sessions == 1 && !d.offer->began, "%x, %d", status, d.sessions);
    close_daemon(&d);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    attaches();
    attaches_among_threads();
    never_accepts();
    is_readable_only();
    puts("track_attach: by size, by request, children, no wait for a daemon that never accepts");
    return 0;
}
