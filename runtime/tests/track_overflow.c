/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_overflow.c: under a daemon that does not read, every record is either in a ring or counted
 * as lost, the program does not wait, and the object table stays complete. A new daemon gets the
 * client back.
 */
#include "hazard.h"
#include <time.h>

#define PAIRS 20000 /* 2 * 20000 records: several rings full */
#define KEPT 300    /* chosen */

static int hosted(void) {
    for (int i = 0; i < PAIRS; i++)
        free(malloc(40000));
    for (int i = 0; i < KEPT; i++)
        hazard_sink = malloc(41 * 4096);
    return 0;
}

/* Allocates until the daemon has a new session from it, and makes the file DONE. */
static int persistent(void) {
    time_t end = time(NULL) + 30;
    while (access(getenv("DONE"), F_OK) && time(NULL) < end)
        for (int i = 0; i < 1000; i++)
            free(malloc(40000));
    return access(getenv("DONE"), F_OK) ? 1 : 0;
}

static int kept;
static void count_kept(struct session *s, const struct known_object *found) {
    (void)s;
    kept += found->bytes == 41 * 4096;
}

static void overflow(void) {
    struct daemon d = {.never_drains = true};
    open_daemon(&d);
    int status = serve(&d, start_hosted(&d, "hosted"));
    CHECK(status == 0 && !*errors_of(&d), "status %x: %s", status, errors_of(&d));
    struct session *s = d.session[0];
    drain(s);
    uint64_t accounted = s->records + s->lost + s->without_ring;
    CHECK(s->lost > 30000, "lost %lu", s->lost);
    CHECK(accounted >= 2 * PAIRS + KEPT, "%lu records of %d", accounted, 2 * PAIRS + KEPT);
    walk_table(s, count_kept);
    CHECK(kept == KEPT, "table: %d of %d", kept, KEPT);
    printf("track_overflow: %lu of %lu records lost and counted, table true", s->lost, accounted);
    close_daemon(&d);
}

static void restart(void) {
    struct daemon old = {.never_drains = true}, new = {0};
    char done[200];
    open_daemon(&old);
    open_daemon(&new);
    snprintf(done, sizeof(done), "%s/done", new.folder);
    setenv("DONE", done, 1);
    pid_t pid = start_hosted(&old, "persistent");
    while (!old.sessions)
        accept_session(&old);
    /* The old daemon is gone; the new one listens in its place. */
    close(old.listener);
    unlink(old.path);
    CHECK(!rename(new.path, old.path));
    struct pollfd wait = {new.listener, POLLIN, 0};
    CHECK(poll(&wait, 1, 20000) == 1, "the client does not come back");
    accept_session(&new);
    close(open(done, O_CREAT | O_WRONLY, 0600));
    int status = serve(&new, pid);
    CHECK(status == 0, "status %x", status);
    CHECK(new.sessions == 1 && new.session[0]->pid == pid, "%d sessions", new.sessions);
    check_objects(new.session[0]);
    unlink(done);
    close_daemon(&new);
    old.listener = -1;
    close_daemon(&old);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return !strcmp(argv[1], "hosted") ? hosted() : persistent();
    overflow();
    restart();
    printf("; a new daemon got its client\n");
    return 0;
}
