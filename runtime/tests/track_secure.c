/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_secure.c: a process the kernel calls secure (set-user-id, capabilities) opens no socket
 * that its caller named. This program defines getauxval itself, to simulate such a kernel.
 */
// build: -rdynamic
#include "hazard.h"
#include <sys/auxv.h>

unsigned long getauxval(unsigned long type) {
    return type == AT_SECURE && getenv("SIMULATE_SECURE") ? 1 : 0;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        churn(1000, 1);
        return 0;
    }
    (void)argv;
    struct daemon d = {0};
    open_daemon(&d);
    int plain = serve(&d, start_hosted(&d, "hosted"));
    CHECK(plain == 0 && d.sessions == 1, "the control: status %x, %d sessions", plain, d.sessions);
    setenv("SIMULATE_SECURE", "1", 1);
    int secure = serve(&d, start_hosted(&d, "hosted"));
    CHECK(secure == 0 && d.sessions == 1, "status %x, %d sessions", secure, d.sessions);
    CHECK(!*errors_of(&d), "said: %s", errors_of(&d));
    close_daemon(&d);
    printf("track_secure: no session, no message\n");
    return 0;
}
