/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_dlopen.c: a library that allocates in its constructor is unloaded, and another is loaded at
 * the same addresses: their sites are distinct, and deaths are recorded. The program begins without
 * an error of the loader's.
 */
#include "hazard.h"
#include <dlfcn.h>

/* Two libraries of one shape: only the size they allocate differs, and so their build-id. */
static void build(const char *path, int pages) {
    char command[512];
    snprintf(command, sizeof(command),
             "printf '#include <stdlib.h>\\nstatic void *p;\\n"
             "__attribute__((constructor)) void in(void) { p = malloc(%d * 4096); }\\n"
             "__attribute__((destructor)) void out(void) { if (%d & 1) free(p); }\\n' | "
             "cc -O0 -shared -fPIC -Wl,--build-id -x c - -o %s",
             pages, pages, path);
    CHECK(!system(command), "no library: %s", command);
}

static int hosted(void) {
    const char *error = dlerror();
    CHECK(!error, "%s", error);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 2; i++) {
            char path[256];
            snprintf(path, sizeof(path), "%s/lib%d.so", getenv("LIBRARIES"), i);
            void *library = dlopen(path, RTLD_NOW);
            CHECK(library, "%s", dlerror());
            churn(100, 1);
            CHECK(!dlclose(library), "%s", dlerror());
        }
    return 0;
}

static struct session *hosted_session;
static int found_count;
static void look(struct session *s, const struct known_object *found) {
    if (found->bytes != 1234 * 4096)
        return;
    found_count++;
    struct tcl_site *site = (struct tcl_site *)(s->base + TCL_SITES_AT) + found->site;
    struct tcl_module *module =
        (struct tcl_module *)(s->base + TCL_MODULES_AT) + (site->frames[0] >> 48);
    CHECK(found->site && strstr(module->path, "lib1.so"), "site %u in %s", found->site,
          module->path);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted();
    (void)argv;
    char folder[] = "/tmp/tiercel-lib-XXXXXX", path[2][64];
    CHECK(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof(path[i]), "%s/lib%d.so", folder, i);
        build(path[i], 1233 + i);
    }
    setenv("LIBRARIES", folder, 1);
    struct daemon d = {0};
    host(&d, "hosted");
    hosted_session = d.session[0];
    walk_table(hosted_session, look);
    CHECK(found_count == 3, "%d objects of the library that leaks", found_count);
    for (int i = 0; i < 2; i++)
        unlink(path[i]);
    rmdir(folder);
    printf("track_dlopen: objects of unloaded libraries keep the right sites\n");
    close_daemon(&d);
    return 0;
}
