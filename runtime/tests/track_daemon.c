/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_daemon.c: daemons that are missing, mute, send garbage or refuse, or that write garbage to
 * the control page: the program keeps its exit status and says nothing; what failed is in the
 * offer.
 */
#include "hazard.h"

/* Runs the program; checks its status, that it says nothing, and the error that the offer counts.
 */
static void run(struct daemon *d, const char *what, int error) {
    int status = serve(d, start_hosted(d, "hosted"));
    const char *said = errors_of(d);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "%s: status %x: %s", what, status, said);
    CHECK(!*said, "%s: said %s", what, said);
    const struct tcl_offer *offer = d->offer;
    CHECK(offer->failed == (error != 0), "%s: %lu failed", what, offer->failed);
    CHECK(offer->failed_errno == (uint32_t)error, "%s: %s", what, strerror(offer->failed_errno));
}

static void without_socket(void) {
    struct daemon d = {0};
    open_daemon(&d);
    char there[108];
    strcpy(there, d.path);
    strcat(d.path, ".missing");
    run(&d, "missing", 0);
    CHECK(!d.offer->began, "a program of another socket counted itself");
    strcpy(d.path, there);
    close(d.listener);
    run(&d, "dead", ECONNREFUSED);
    CHECK(d.offer->failed_step == TCL_STEP_CONNECT, "step %u", d.offer->failed_step);
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
    run(&d, "another user's", 0);
    CHECK(!d.sessions && !d.offer->began, "%d sessions", d.sessions);
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
    run(&mute, "mute", 0);
    close_daemon(&mute);
    struct daemon garbled = {.answers_garbage = true};
    open_daemon(&garbled);
    run(&garbled, "garbled", 0);
    close_daemon(&garbled);
    for (uint32_t status = 1; status <= 4; status++) {
        struct daemon unwilling = {.status = status};
        open_daemon(&unwilling);
        run(&unwilling, "unwilling", 0);
        /* Where there is no room now, the process comes again later. */
        bool is_final = status != TCL_REFUSED_FULL;
        CHECK(header_of(unwilling.session[0])->detached == is_final, "status %u", status);
        CHECK(unwilling.session[0]->records < 3000, "it goes on");
        close_daemon(&unwilling);
    }
    struct daemon scribbler = {.fills_control_with_garbage = true};
    open_daemon(&scribbler);
    run(&scribbler, "scribbler", 0);
    CHECK(scribbler.session[0]->records > 1000, "tracking ended");
    close_daemon(&scribbler);
    puts("track_daemon: missing, dead, mute, garbled, unwilling, scribbling: unharmed");
    return 0;
}
