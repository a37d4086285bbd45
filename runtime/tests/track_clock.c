/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_clock.c: a program that forbids itself to read the CPU's counter, and with it the clock
 * that is made of it. Its records have no time, and it lives.
 */
#include "hazard.h"
#include <sys/prctl.h>

static int forbidden(void) {
    churn(1000, 1);
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV))
        return 1;
    churn(1000, 2);
    return 42;
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1)
        return forbidden();
    struct daemon d = {0};
    open_daemon(&d);
    int status = serve(&d, start_hosted(&d, "forbidden"));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "status %x: %s", status, errors_of(&d));
    CHECK(d.sessions == 1, "%d sessions", d.sessions);
    close_daemon(&d);
    printf("track_clock: a program that forbids itself the clock is unharmed\n");
    return 0;
}
