/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_own_malloc.c: a program that exports malloc itself overrides the preload: one line says so,
 * and its mappings are still tracked.
 */
// build: -rdynamic
#include "hazard.h"

static char arena[64 << 20];
static _Atomic size_t used;

void *malloc(size_t bytes) {
    size_t at = used;
    bytes = (bytes + 79) & ~(size_t)63; /* the size stands in front */
    while (!__atomic_compare_exchange_n((size_t *)&used, &at, at + bytes, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        ;
    if (at + bytes > sizeof(arena))
        return NULL;
    *(size_t *)(arena + at) = bytes - 16;
    return arena + at + 16;
}
void free(void *p) {
    (void)p;
}
void *calloc(size_t count, size_t bytes) {
    return malloc(count * bytes);
}
void *realloc(void *p, size_t bytes) {
    void *to = malloc(bytes);
    if (to && p) {
        size_t old = ((size_t *)p)[-2];
        memcpy(to, p, old < bytes ? old : bytes);
    }
    return to;
}

static int hosted(void) {
    for (int i = 0; i < 10; i++) {
        void *p = mmap(NULL, 321 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(p != MAP_FAILED, "mmap");
        if (i % 2)
            munmap(p, 321 * 4096);
    }
    return 0;
}

static int mappings;
static void look(struct session *s, const struct known_object *found) {
    (void)s;
    mappings += found->bytes == 321 * 4096;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted();
    (void)argv;
    struct daemon d = {0};
    open_daemon(&d);
    int status = serve(&d, start_hosted(&d, "hosted"));
    CHECK(status == 0 && d.sessions == 1, "status %x, %d sessions", status, d.sessions);
    CHECK(!*errors_of(&d), "said: %s", errors_of(&d));
    uint32_t remarks = header_of(d.session[0])->remarks;
    CHECK(remarks == TCL_REMARK_OWN_MALLOC, "remarks %x", remarks);
    walk_table(d.session[0], look);
    CHECK(mappings == 5, "%d mappings", mappings);
    close_daemon(&d);
    printf("track_own_malloc: detected, reported, mappings tracked\n");
    return 0;
}
