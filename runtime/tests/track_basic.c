/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_basic.c: an ordinary program: every object is recorded once, sites are resolved, tables
 * agree.
 */
#include "hazard.h"

#define LARGE ((size_t)1 << 29) /* much more than all other objects */

__attribute__((noinline)) static void *xmalloc(size_t bytes) {
    void *p = malloc(bytes);
    CHECK(p, "no memory");
    return p;
}
__attribute__((noinline)) static void *from_here(void) {
    void *p = xmalloc(1 << 20);
    hazard_sink = p;
    return p;
}
__attribute__((noinline)) static void *from_there(void) {
    void *p = xmalloc(1 << 21);
    hazard_sink = p;
    return p;
}

static int hosted(void) {
    churn(1200, 1); /* fewer records than a ring holds: nothing is lost however slow the daemon */
    void *a[8], *b[8];
    for (int i = 0; i < 8; i++) {
        a[i] = from_here();
        b[i] = from_there();
    }
    for (int i = 0; i < 3; i++) { /* fresh once */
        void *large = xmalloc(LARGE);
        hazard_sink = large;
        free(large);
    }
    char *map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED, "mmap");
    CHECK(!munmap(map + 65536, 4096), "a hole");
    map = mremap(map, 65536, 1 << 20, MREMAP_MAYMOVE);
    CHECK(map != MAP_FAILED, "mremap");
    memset(map, 1, 1 << 20);
    for (int i = 0; i < 8; i++)
        hazard_sink = a[i], hazard_sink = b[i];
    return 0;
}

static struct {
    uint64_t bytes;
    uint32_t site;
    int count;
} seen[3] = {{1 << 20, 0, 0}, {1 << 21, 0, 0}, {(1 << 20) - 69632, 0, 0}};

static void sort_by_size(struct session *s, const struct known_object *found) {
    for (int i = 0; i < 3; i++)
        if (found->bytes == seen[i].bytes) {
            seen[i].count++;
            if (i < 2 || !seen[i].site)
                seen[i].site = found->site;
        }
    (void)s;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted();
    (void)argv;
    struct daemon d = {0};
    host(&d, "hosted");
    struct session *s = d.session[0];
    CHECK(d.sessions == 1, "%d sessions", d.sessions);
    CHECK(s->lost + s->without_ring == 0, "lost %lu", s->lost);
    CHECK(s->kinds[TCL_BORN] > 1000 && s->kinds[TCL_DIED] > 1000, "few records");
    CHECK(s->fresh_bytes >= LARGE + (24 << 20) && s->fresh_bytes < 2 * LARGE, "%lu bytes fresh",
          s->fresh_bytes);
    walk_table(s, sort_by_size);
    CHECK(seen[0].count == 9 && seen[1].count == 8 && seen[2].count == 1, "%d %d %d", seen[0].count,
          seen[1].count, seen[2].count);
    CHECK(seen[0].site != seen[1].site, "one wrapper, two callers, one site");
    struct tcl_site *sites = (void *)(s->base + TCL_SITES_AT);
    struct tcl_module *modules = (void *)(s->base + TCL_MODULES_AT);
    struct tcl_site *site = &sites[seen[1].site];
    CHECK(site->published && site->frame_count >= 4, "%d frames", site->frame_count);
    struct tcl_module *module = &modules[site->frames[0] >> 48];
    CHECK(module->published && module->build_id_bytes == 20, "build-id %d", module->build_id_bytes);
    CHECK(strstr(module->path, "track_basic"), "%s", module->path);
    printf("track_basic: %lu records, %u sites, %u modules, depth %d\n", s->records,
           header_of(s)->site_count, header_of(s)->module_count, site->frame_count);
    close_daemon(&d);
    return 0;
}
