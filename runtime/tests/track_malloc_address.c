/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_malloc_address.c: a program that is not position-independent and takes malloc's address
 * seems to export malloc, at a jump to ours: it brings no malloc of its own, and nothing says so.
 */
// build: -no-pie -fno-pie
#include "hazard.h"
#include <dlfcn.h>

static int hosted(void) {
    void *(*volatile address)(size_t) = malloc; /* in code: the linker has data relocated */
    Dl_info found, own;
    CHECK(dladdr((void *)address, &found) && dladdr((void *)hosted, &own), "dladdr");
    CHECK(found.dli_fbase == own.dli_fbase, "malloc seems to be in %s", found.dli_fname);
    char *p = address(3u << 20);
    CHECK(p, "no memory");
    memset(p, 1, 3u << 20);
    return p[5] - 1;
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1)
        return hosted();
    struct daemon d = {0};
    open_daemon(&d);
    int status = serve(&d, start_hosted(&d, "hosted"));
    CHECK(status == 0 && d.sessions == 1, "status %x, %d sessions", status, d.sessions);
    uint32_t remarks = header_of(d.session[0])->remarks;
    CHECK(remarks == 0, "remarks %x", remarks);
    close_daemon(&d);
    printf("track_malloc_address: ours, though the program seems to have one\n");
    return 0;
}
