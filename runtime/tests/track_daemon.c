/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_daemon.c: daemons that are missing, mute, send garbage or refuse, or that write garbage to
 * the control page: the program keeps its exit status, and one clear line states the reason.
 */
#include "hazard.h"
#include <time.h>

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Runs the program; checks its status and that stderr is exactly one line with `word`, or nothing.
 */
static void run(struct daemon *d, const char *what, const char *word) {
    int status = serve(d, start_hosted(d, "hosted"));
    const char *said = errors_of(d);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "%s: status %x: %s", what, status, said);
    if (!word) {
        CHECK(!*said, "%s: said %s", what, said);
        return;
    }
    CHECK(!strncmp(said, "tiercel: ", 9) && strstr(said, word), "%s: said: %s", what, said);
    CHECK(strchr(said, '\n') == said + strlen(said) - 1, "%s: one line: %s", what, said);
}

static void without_socket(void) {
    struct daemon d = {0};
    open_daemon(&d);
    char there[108];
    strcpy(there, d.path);
    strcat(d.path, ".missing");
    run(&d, "missing", "No such file");
    strcpy(d.path, there);
    close(d.listener);
    run(&d, "dead", "refused");
    close_daemon(&d);
}

/* Another user's socket is not trusted with the session's memory. Only root can set this up. */
static void of_another_user(void) {
    struct daemon d = {0};
    if (geteuid())
        return;
    CHECK(!seteuid(65534));
    open_daemon(&d);
    CHECK(!seteuid(0));
    run(&d, "another user's", "not permitted");
    CHECK(!d.sessions, "%d sessions", d.sessions);
    close_daemon(&d);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        churn(3000, 1);
        return 42;
    }
    (void)argv;
    without_socket();
    of_another_user();
    struct daemon mute = {.is_mute = true};
    open_daemon(&mute);
    double began = seconds();
    run(&mute, "mute", "does not answer");
    double took = seconds() - began;
    CHECK(took < 5, "a mute daemon held the program for %.2f s", took);
    close_daemon(&mute);
    struct daemon garbled = {.answers_garbage = true};
    open_daemon(&garbled);
    run(&garbled, "garbled", "no greeting");
    close_daemon(&garbled);
    const char *reasons[] = {NULL, "version", "other users", "no room", "refused"};
    for (uint32_t status = 1; status <= 4; status++) {
        struct daemon unwilling = {.status = status};
        open_daemon(&unwilling);
        run(&unwilling, "unwilling", reasons[status]);
        CHECK(header_of(unwilling.session[0])->detached == 1, "the session is not detached");
        close_daemon(&unwilling);
    }
    struct daemon scribbler = {.fills_control_with_garbage = true};
    open_daemon(&scribbler);
    run(&scribbler, "scribbler", NULL);
    CHECK(scribbler.session[0]->records > 1000, "tracking ended");
    close_daemon(&scribbler);
    printf("track_daemon: missing, dead, mute (%.2f s), garbled, unwilling, scribbling: unharmed\n",
           took);
    return 0;
}
