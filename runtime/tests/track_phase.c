/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_phase.c: phases by name: equal names get equal numbers, too many and too long names, a
 * forked child that continues in its parent's phase, and entries that wait for moves, done or not.
 */
#include "hazard.h"
#include "tiercel.h"
#include <linux/futex.h>

#define WAIT_MS 30 /* chosen: short, since it always passes */

static uint64_t hash_of(const char *name) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
    return hash;
}

static void names(void) {
    char name[256];
    tiercel_phase(NULL);
    tiercel_phase("");
    for (int i = 0; i < 3; i++) {
        tiercel_phase("one");
        tiercel_phase("two");
    }
    memset(name, 'x', sizeof(name) - 1), name[sizeof(name) - 1] = 0;
    tiercel_phase(name);
    for (unsigned i = 0; i < TCL_PHASES_MAX; i++) {
        snprintf(name, sizeof(name), "many %u", i);
        tiercel_phase(name);
    }
    tiercel_phase("two");
}

/* The child inherits the parent's phase, and reports it at its first birth. */
static void child(void) {
    pid_t pid = fork();
    if (pid == 0) {
        hazard_sink = malloc(9999);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "%x", status);
}

static const char *marker(void) {
    static char path[200];
    snprintf(path, sizeof(path), "%s.moved", getenv("TIERCEL_SOCKET"));
    return path;
}

static int hosted(const char *part) {
    errno = 4711;
    if (!strcmp(part, "names")) {
        names();
        CHECK(errno == 4711, "errno %d", errno);
        child();
    } else if (!strcmp(part, "unanswered")) {
        tiercel_phase("go");
        tiercel_phase("stop");
    } else {
        tiercel_phase("go");
        tiercel_phase("stop"); /* goes on only when the daemon has moved */
        CHECK(!access(marker(), F_OK), "%s: %s", marker(), strerror(errno));
    }
    return 0;
}

static void stop_at_stop(struct session *s) {
    control_of(s)->stops[0] = hash_of("elsewhere");
    control_of(s)->stops[1] = hash_of("stop");
    control_of(s)->phase_wait_ms = WAIT_MS;
}

static struct daemon *of_mover;

/* Reports the moves as done after the second entry. */
static void *mover(void *unused) {
    struct session *s = unused;
    char path[200];
    uint64_t word;
    while ((word = __atomic_load_n(&header_of(s)->phase_entered, __ATOMIC_ACQUIRE)) >> 32 < 2)
        sched_yield();
    snprintf(path, sizeof(path), "%s.moved", of_mover->path);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0);
    close(fd);
    __atomic_store_n(&control_of(s)->phase_done, 2, __ATOMIC_RELEASE);
    syscall(SYS_futex, &control_of(s)->phase_done, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    return NULL;
}

static void stop_and_move(struct session *s) {
    static pthread_t thread;
    stop_at_stop(s);
    control_of(s)->phase_wait_ms = TCL_PHASE_WAIT_MS_MAX * 3; /* clamped */
    if (!s->pid)
        return; /* the offer */
    CHECK(!pthread_create(&thread, NULL, mover, s), "no thread");
    pthread_detach(thread);
}

static void check_names(struct daemon *d) {
    struct session *s = d->session[0];
    struct tcl_header *header = header_of(s);
    struct tcl_phase_name *table = (void *)(s->base + TCL_PHASES_AT);
    CHECK(header->phase_count == TCL_PHASES_MAX, "%u names", header->phase_count);
    CHECK(!table[0].published && table[1].published && !table[1].name_bytes, "the empty name");
    CHECK(table[2].hash == hash_of("one") && !memcmp(table[2].name, "one", 3), "one");
    CHECK(table[4].name_bytes == TCL_PHASE_NAME_MAX, "%u", table[4].name_bytes);
    /* The empty name, one, two, the long one and phase 0 leave room for all but five of many. */
    CHECK(header->phase_overflows == 5, "%u overflows", header->phase_overflows);
    uint32_t entries = 1 + 6 + 1 + TCL_PHASES_MAX - 5 + 1;
    CHECK(header->phase_entered == ((uint64_t)entries << 32 | 3), "%lx", header->phase_entered);
    CHECK(s->kinds[TCL_PHASE] == entries, "%lu records", s->kinds[TCL_PHASE]);
    CHECK(d->sessions == 2, "%d sessions", d->sessions);
    CHECK(header_of(d->session[1])->phase_entered == 3, "%lx",
          header_of(d->session[1])->phase_entered);
    table = (void *)(d->session[1]->base + TCL_PHASES_AT);
    CHECK(table[3].published && table[3].hash == hash_of("two"), "the child's names");
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    struct daemon d = {0};
    host(&d, "names");
    check_names(&d);
    close_daemon(&d);
    struct daemon late = {.prepare = stop_at_stop};
    host(&late, "unanswered");
    close_daemon(&late);
    struct daemon moves = {.prepare = stop_and_move};
    of_mover = &moves;
    host(&moves, "answered");
    char path[200];
    snprintf(path, sizeof(path), "%s.moved", moves.path);
    unlink(path);
    close_daemon(&moves);
    printf("track_phase: names, too many of them, a child, waits answered and not\n");
    return 0;
}
