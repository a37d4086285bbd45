/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_shared.c: mappings of one memory have one name in all processes: of a memfd however it is
 * opened, of anonymous memory that a forked child inherits; others have others. Files are objects,
 * devices are none. What is unmapped is gone.
 */
#include "hazard.h"

#define BYTES (6u << 20)
#define FILE_BYTES (5u << 20)
#define ANONYMOUS_BYTES (7u << 20)

static void *map(size_t bytes, int flags, int fd) {
    void *p = mmap(NULL, bytes, PROT_READ, flags, fd, 0);
    CHECK(p != MAP_FAILED, "%s", strerror(errno));
    return p;
}

static int memory(const char *name, size_t bytes) {
    int fd = memfd_create(name, MFD_CLOEXEC);
    CHECK(fd >= 0 && !ftruncate(fd, (off_t)bytes));
    return fd;
}

static int hosted(void) {
    int table = memory("table", BYTES), other = memory("other", BYTES);
    int file = memory("file", FILE_BYTES);
    map(BYTES, MAP_SHARED, table);
    map(BYTES, MAP_SHARED, table); /* once more */
    map(BYTES, MAP_SHARED, other);
    map(FILE_BYTES, MAP_PRIVATE, file);
    map(ANONYMOUS_BYTES, MAP_SHARED | MAP_ANONYMOUS, -1);
    CHECK(!munmap(map(BYTES, MAP_SHARED, other), BYTES));
    int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
    map(9u << 20, MAP_PRIVATE, zero);
    pid_t pid = fork();
    if (!pid) {
        churn(100, 3);
        map(BYTES, MAP_SHARED, table);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && !status, "child: %x", status);
    return 0;
}

static uint64_t names[64];
static int name_count, of_kind[8], device_count;
static void look(struct session *s, const struct known_object *object) {
    const struct tcl_site *site = (struct tcl_site *)(s->base + TCL_SITES_AT) + object->site;
    of_kind[site->kind & 7] += object->site != 0;
    device_count += object->bytes == 9u << 20;
}

/* How many mappings of a size a session has, and whether they have one name; 0: they have not. */
static uint64_t name_of(struct session *s, uint64_t bytes, int *count) {
    struct tcl_map *maps = (void *)(s->base + TCL_MAPS_AT);
    name_count = 0;
    for (uint32_t i = 0; i < header_of(s)->map_high_water; i++)
        if (maps[i].addr && maps[i].size == bytes && name_count < 64)
            names[name_count++] = maps[i].share;
    *count = name_count;
    for (int i = 1; i < name_count; i++)
        if (names[i] != names[0])
            return 0;
    return name_count ? names[0] : 0;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted();
    (void)argv;
    struct daemon d = {0};
    host(&d, "hosted");
    CHECK(d.sessions == 2, "%d sessions", d.sessions);
    int count[2];
    uint64_t anonymous = name_of(d.session[0], ANONYMOUS_BYTES, &count[0]);
    CHECK(anonymous && anonymous == name_of(d.session[1], ANONYMOUS_BYTES, &count[1]));
    CHECK(count[0] == 1 && count[1] == 1, "%d, %d", count[0], count[1]);
    uint64_t file = name_of(d.session[0], FILE_BYTES, &count[0]);
    CHECK(file && file == name_of(d.session[1], FILE_BYTES, &count[1]) && file != anonymous);
    for (int i = 0; i < 2; i++) {
        name_of(d.session[i], BYTES, &count[i]);
        CHECK(count[i] == 3 + i, "%d mappings", count[i]);
        int of_table = 0, of_other = 0;
        for (int k = 0; k < count[i]; k++) {
            int same = 0;
            for (int l = 0; l < count[i]; l++)
                same += names[l] == names[k];
            of_table += same == 2 + i;
            of_other += same == 1;
        }
        CHECK(names[0] && of_table == 2 + i && of_other == 1, "%d and %d", of_table, of_other);
    }
    walk_table(d.session[0], look);
    CHECK(of_kind[TCL_SITE_SHARED] == 4 && of_kind[TCL_SITE_FILE] == 1 && !device_count,
          "%d shared, %d files, %d devices", of_kind[TCL_SITE_SHARED], of_kind[TCL_SITE_FILE],
          device_count);
    CHECK(d.session[0]->kinds[TCL_SHARE] == 6, "%lu", d.session[0]->kinds[TCL_SHARE]);
    printf("track_shared: one name for one memory, in all processes\n");
    close_daemon(&d);
    return 0;
}
