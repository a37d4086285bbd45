/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_mark.c: loops that the compiler marked are phases, of the main thread, in loops of others,
 * also where one is left by a jump, in a forked child, and not where the program names phases by
 * itself or there are too many; what is short on average is off.
 * In: programs that do as compiled code does. Out: the phases in their sessions.
 */
#include "hazard.h"
#include "tiercel.h"
#include "tiercel_probe.h"
#include <dlfcn.h>

static struct tiercel_probe_mark *(*enter)(struct tiercel_probe_mark *);
static void (*leave)(struct tiercel_probe_mark *, struct tiercel_probe_mark *);

static struct tiercel_probe_mark outer = {.name = "outer:1", .is_planned = 1};
static struct tiercel_probe_mark inner = {.name = "inner:2", .is_planned = 1};
static struct tiercel_probe_mark found = {.name = "found:3"};

static void find_calls(void) {
    *(void **)&enter = dlsym(RTLD_DEFAULT, "tiercel_probe_enter");
    *(void **)&leave = dlsym(RTLD_DEFAULT, "tiercel_probe_exit");
    CHECK(enter && leave, "not exported");
}

/* outer inner outer inner outer start */
static void nested(void) {
    struct tiercel_probe_mark *before = enter(&outer);
    CHECK(!before, "in %s", before->name);
    for (int i = 0; i < 2; i++) {
        struct tiercel_probe_mark *around = enter(&inner);
        CHECK(around == &outer, "not in outer");
        leave(&inner, around);
    }
    leave(&outer, before);
}

/* outer inner, left by a jump: inner is on until outer ends; then start. */
static void jumped(void) {
    struct tiercel_probe_mark *before = enter(&outer);
    enter(&inner);
    leave(&outer, before);
}

/* Short, and not planned: off after sixteen times, unless the machine stopped for 160 ms meanwhile.
 */
static void brief(void) {
    for (unsigned i = 0; i < 16; i++) {
        CHECK(!found.is_off, "after %u entries", i);
        struct tiercel_probe_mark *before = enter(&found);
        CHECK(!before, "in another");
        leave(&found, before);
    }
    CHECK(found.is_off == (found.total_ms < 160), "%u ms", found.total_ms);
}

static void *in_thread(void *unused) {
    CHECK(enter(&outer) == TIERCEL_PROBE_NOT_ENTERED, "a phase of another thread");
    return unused;
}

static void elsewhere(void) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, in_thread, NULL), "no thread");
    pthread_join(thread, NULL);
}

static void *forks(void *unused) {
    pid_t pid = fork();
    if (pid == 0) { /* its only thread is the main one */
        struct tiercel_probe_mark *before = enter(&inner);
        CHECK(!before, "in a loop of another thread");
        leave(&inner, before);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "%x", status);
    return unused;
}

/* While the main thread is in a loop. */
static void child_of_thread(void) {
    struct tiercel_probe_mark *before = enter(&outer);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, forks, NULL), "no thread");
    pthread_join(thread, NULL);
    leave(&outer, before);
}

static void own(void) {
    struct tiercel_probe_mark *before = enter(&outer);
    tiercel_phase("own");
    CHECK(enter(&inner) == TIERCEL_PROBE_NOT_ENTERED, "beside the program's own");
    leave(&outer, before); /* the program's own stays */
}

static void many(void) {
    static struct tiercel_probe_mark marks[TCL_PHASES_MAX];
    static char names[TCL_PHASES_MAX][16];
    for (unsigned i = 0; i < TCL_PHASES_MAX; i++) {
        snprintf(names[i], sizeof(names[i]), "loop:%u", i);
        marks[i] = (struct tiercel_probe_mark){.name = names[i], .is_planned = 1};
        leave(&marks[i], enter(&marks[i]));
        CHECK(marks[i].is_off == (i == TCL_PHASES_MAX - 1), "loop %u", i);
    }
}

#define ANY UINT64_MAX
struct part {
    const char *name;
    void (*run)(void);
    uint64_t entries; /* of phases, in the first session; ANY: as many as the machine is slow */
    uint32_t last;    /* number of the phase at the end */
};
static const struct part parts[] = {
    {"nested", nested, 6, 0},
    {"jumped", jumped, 3, 0},
    {"brief", brief, ANY, 0},
    {"elsewhere", elsewhere, 0, 0},
    {"child", child_of_thread, 2, 0},
    {"own", own, 2, 2},
    {"many", many, 2 * (TCL_PHASES_MAX - 1), 0},
};
#define PARTS (sizeof(parts) / sizeof(*parts))

static int hosted(const char *name) {
    find_calls();
    hazard_sink = malloc(100000);
    errno = 4711;
    for (unsigned i = 0; i < PARTS; i++)
        if (!strcmp(parts[i].name, name))
            parts[i].run();
    CHECK(errno == 4711 || !strcmp(name, "child") || !strcmp(name, "elsewhere"), "%d", errno);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    find_calls(); /* without a daemon they do nothing */
    CHECK(enter(&outer) == TIERCEL_PROBE_NOT_ENTERED, "entered without a daemon");
    for (unsigned i = 0; i < PARTS; i++) {
        struct daemon d = {0};
        host(&d, parts[i].name);
        struct tcl_header *header = header_of(d.session[0]);
        CHECK(parts[i].entries == ANY ||
                  header->phase_entered == (parts[i].entries << 32 | parts[i].last),
              "%s: %lx", parts[i].name, header->phase_entered);
        close_daemon(&d);
    }
    printf("track_mark: loops as phases\n");
    return 0;
}
