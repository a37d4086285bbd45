/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_static.c: memory that no call of the program allocates is seen: its own static data, also a
 * huge one that is never touched, that of a library as long as it is loaded, the stacks of the
 * first and of other threads. A program that allocates nothing attaches for the sake of its static
 * data, and one that is unloaded leaves nothing behind. Children have what their parent had.
 */
#include "hazard.h"
#include <dlfcn.h>
#include <link.h>

#define HUGE_BYTES (1ull << 30)
#define LIBRARY_BYTES (3u << 20)

char huge[HUGE_BYTES];
int values[1 << 18] = {1};

/* Its resolver maps memory while the loader has listed the library and cannot find it by address
 * yet: what the runtime cannot name then it names later. */
static const char library_text[] =
    "#include <sys/mman.h>\n"
    "char table[%u];\n"
    "int f(int i) { return table[i]; }\n"
    "static int (*pick(void))(int) {\n"
    "    munmap(mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);\n"
    "    return f;\n"
    "}\n"
    "static int picked(int) __attribute__((ifunc(\"pick\")));\n"
    "int g(void) { return picked(1); }\n";

static void build(const char *path) {
    char command[128];
    snprintf(command, sizeof(command), "cc -shared -fPIC -fno-plt -Wl,-z,now -x c - -o %s", path);
    FILE *compiler = popen(command, "w");
    CHECK(compiler && fprintf(compiler, library_text, LIBRARY_BYTES) > 0, "%s", command);
    CHECK(!pclose(compiler), "no library: %s", command);
}

/* A mapping: here the runtime looks at what is loaded. */
static void look_now(void) {
    void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED && !munmap(p, 4096));
}

static void *in_thread(void *unused) {
    (void)unused;
    churn(10, 1);
    return NULL;
}

static int hosted(const char *part) {
    if (!strcmp(part, "silent"))
        return values[2] + huge[5];
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, in_thread, NULL) && !pthread_join(thread, NULL));
    for (int round = 0; round < 3; round++) {
        void *library = dlopen(getenv("LIBRARY"), RTLD_NOW);
        CHECK(library, "%s", dlerror());
        look_now();
        int kept = !strcmp(part, "keeps") && round == 2;
        if (!kept)
            CHECK(!dlclose(library), "%s", dlerror());
    }
    pid_t pid = strcmp(part, "forks") ? 0 : fork();
    if (!strcmp(part, "forks") && !pid)
        churn(500, 7), _exit(0);
    int status = 0;
    CHECK(pid == 0 || (waitpid(pid, &status, 0) == pid && !status), "child: %x", status);
    return 0;
}

static struct { int huge, values, library, main_stack, stack, of_kind[8]; } found;

static void look(struct session *s, const struct known_object *object) {
    const struct tcl_site *site = (struct tcl_site *)(s->base + TCL_SITES_AT) + object->site;
    if (!object->site || site->kind > TCL_SITE_FILE)
        return;
    found.of_kind[site->kind]++;
    bool is_static = site->kind == TCL_SITE_STATIC;
    found.huge += is_static && object->bytes >= HUGE_BYTES + sizeof(values);
    found.library +=
        is_static && object->bytes >= LIBRARY_BYTES && object->bytes < 2 * LIBRARY_BYTES;
    if (is_static)
        CHECK(site->frame_count == 1 && site->frames[0] >> 48 != TCL_NO_MODULE, "no module");
}

static void check(const char *part, int sessions, int libraries) {
    struct daemon d = {0};
    open_daemon(&d);
    d.offer->attach_bytes = 256 << 10;
    d.offer->attach_ms = UINT32_MAX;
    int status = serve(&d, start_hosted(&d, part));
    CHECK(status == 0 && !*errors_of(&d), "%s: %x, %s", part, status, errors_of(&d));
    CHECK(d.sessions == sessions, "%s: %d sessions", part, d.sessions);
    for (int i = 0; i < d.sessions; i++) {
        check_objects(d.session[i]);
        memset(&found, 0, sizeof(found));
        walk_table(d.session[i], look);
        CHECK(found.huge == 1, "%s: %d static data of the program", part, found.huge);
        CHECK(found.library == libraries, "%s: %d libraries", part, found.library);
        CHECK(found.of_kind[TCL_SITE_MAIN_STACK] >= 1, "%s: no main stack", part);
        CHECK(found.of_kind[TCL_SITE_STACK] == 0, "%s: the stack of a thread that ended", part);
        CHECK(found.of_kind[TCL_SITE_STATIC] >= 3, "%s: %d segments", part,
              found.of_kind[TCL_SITE_STATIC]);
    }
    struct session *s = d.session[0];
    int born = 0; /* as records have it, the stacks and libraries of the past too */
    for (uint32_t i = 0; i < OBJECT_SLOTS; i++) {
        const struct tcl_site *site =
            (struct tcl_site *)(s->base + TCL_SITES_AT) + s->objects[i].site;
        born += s->objects[i].site && site->kind == TCL_SITE_STACK;
    }
    CHECK(!strcmp(part, "silent") || born > 0, "%s: no stack of a thread", part);
    close_daemon(&d);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    char folder[] = "/tmp/tiercel-lib-XXXXXX", path[64];
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/lib.so", folder);
    build(path);
    setenv("LIBRARY", path, 1);
    check("silent", 1, 0);
    check("unloads", 1, 0);
    check("keeps", 1, 1);
    check("forks", 2, 0);
    unlink(path);
    rmdir(folder);
    printf("track_static: static data, of libraries while they are loaded, and stacks\n");
    return 0;
}
