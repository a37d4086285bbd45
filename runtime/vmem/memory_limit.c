/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * memory_limit.c: how much more memory the process may take before the kernel kills it for that.
 * In: its control groups, by /proc and /sys. Out: whether so many bytes are available. Knows
 * nothing of what they are for.
 *
 * The process's own segments are charged to the program's control group, and the kernel kills some
 * process of a group that reaches its limit. Memory that moves exists twice for a moment, and
 * shadows as long as they are kept; so the limit is checked before. The page cache counts as
 * available, because the kernel reclaims it first. Only control groups of version 2 are supported.
 */
#include "../track/session.h"
#include "region.h"
#include <string.h>

#define ROOT "/sys/fs/cgroup"
#define PATH_BYTES 512u  /* Chosen, not measured: container runtimes' paths have some 200 */
#define TEXT_BYTES 4096u /* memory.stat has the lines that are read in its first half */
#define DEPTH_MAX 16     /* of groups. Chosen, not measured */
/* Left to the program, which runs while it is moved. Chosen, not measured: four pieces. */
#define SPARE_BYTES ((size_t)8 << 20)
/* The limit is read again after a SHARE-th of what was left is used, and after this time. Chosen,
 * not measured: the program allocates meanwhile, too. */
#define SHARE 8u
#define REREAD_MS 500u

/* SIZE_MAX where there is no number, as for `max`. */
static size_t number(const char *text) {
    size_t value = 0;
    if (*text < '0' || *text > '9')
        return SIZE_MAX;
    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (size_t)(*text - '0');
    return value;
}

static size_t figure(char *folder, const char *file, const char *key) {
    static char text[TEXT_BYTES]; /* under the lock; a thread's stack may be small */
    size_t end = strlen(folder);
    strcpy(folder + end, file);
    bool is_read = vmem_read_text(folder, text, sizeof(text));
    folder[end] = 0;
    const char *at = !is_read ? NULL : key ? strstr(text, key) : text;
    return at ? number(at + (key ? strlen(key) : 0)) : SIZE_MAX;
}

static size_t room_in(char *folder) {
    size_t most = figure(folder, "/memory.max", NULL);
    size_t now = most == SIZE_MAX ? 0 : figure(folder, "/memory.current", NULL);
    if (most == SIZE_MAX || now == SIZE_MAX)
        return SIZE_MAX;
    size_t room = most > now ? most - now : 0;
    for (int i = 0; room < VMEM_SEGMENT_BYTES && i < 2; i++) {
        size_t files = figure(folder, "/memory.stat", i ? "\ninactive_file " : "\nactive_file ");
        room += files == SIZE_MAX ? 0 : files;
    }
    return room;
}

/* The least room of its own group and those above; SIZE_MAX: no limit, or unknown. */
static size_t room(void) {
    char text[PATH_BYTES], folder[2 * PATH_BYTES] = ROOT;
    size_t least = SIZE_MAX;
    bool is_read = vmem_read_text("/proc/self/cgroup", text, sizeof(text));
    const char *own = is_read ? strstr(text, "0::/") : NULL;
    if (!own)
        return least;
    size_t bytes = strcspn(own + 3, "\n");
    memcpy(folder + sizeof(ROOT) - 1, own + 3, bytes);
    for (int i = 0; i < DEPTH_MAX && strlen(folder) >= sizeof(ROOT) - 1; i++) {
        size_t here = room_in(folder);
        least = here < least ? here : least;
        *strrchr(folder, '/') = 0;
    }
    return least;
}

bool vmem_fits_limit(size_t bytes) {
    tcl_assert_debug(vmem_is_locked());
    static size_t granted;
    static uint64_t read_ms;
    uint64_t now_ms = tcl_now_ms();
    if (bytes > granted || now_ms - read_ms >= REREAD_MS) {
        size_t found = room(), left = found > SPARE_BYTES ? found - SPARE_BYTES : 0;
        read_ms = now_ms;
        granted = left / SHARE > bytes ? left / SHARE : left >= bytes ? bytes : 0;
    }
    bool is_room = bytes <= granted;
    granted -= is_room ? bytes : 0;
    return is_room;
}
