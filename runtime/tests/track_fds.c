/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_fds.c: the runtime keeps no descriptor open: the first one that a program opens is 3, and
 * closing all of them, also the standard ones, does not end tracking.
 */
#include "hazard.h"

static int hosted(void) {
    int first = open("/dev/null", O_RDONLY);
    CHECK(first == 3, "first descriptor is %d", first);
    churn(500, 1);
    closefrom(0);
    for (int i = 0; i < 40; i++)
        if (open("/dev/null", O_RDWR) != i)
            return 2;
    churn(500, 2);
    closefrom(0);
    churn(500, 3);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted();
    (void)argv;
    struct daemon d = {0};
    host(&d, "hosted");
    CHECK(d.session[0]->records > 1000, "%lu records", d.session[0]->records);
    printf("track_fds: none kept, %lu records after closing all\n", d.session[0]->records);
    close_daemon(&d);
    return 0;
}
