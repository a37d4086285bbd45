/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_sites.c: more sites than the table holds, all in generated code without unwind tables;
 * stacks deeper than a site; frames of random size, which must not cost a walk each time; and two
 * callers of one function, at the same depth.
 */
#include "hazard.h"
#include <time.h>

#define CALLS (TCL_SITES_MAX + 3000)
#define CODE_BYTES 32        /* at least the length of `call` below */
#define DEEP 200             /* several times TCL_SITE_FRAMES */
#define RANDOM_FRAMES 300000 /* chosen: enough to exceed WALKS_WITH_CALLERS many times */

/* sub rsp,8; mov rax,malloc; call rax; add rsp,8; ret -- with rdi as given. */
static void generated(void) {
    uint8_t *code = mmap(NULL, (size_t)CALLS * CODE_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(code != MAP_FAILED);
    void *target = malloc;
    for (uint32_t i = 0; i < CALLS; i++) {
        uint8_t call[] = {0x48, 0x83, 0xec, 8,    0x48, 0xb8, 0,    0,    0, 0,   0,
                          0,    0,    0,    0xff, 0xd0, 0x48, 0x83, 0xc4, 8, 0xc3};
        memcpy(call + 6, &target, 8);
        memcpy(code + i * CODE_BYTES, call, sizeof(call));
    }
    for (uint32_t i = 0; i < CALLS; i++) {
        void *(*function)(size_t) = (void *(*)(size_t))(code + i * CODE_BYTES);
        free(function(8192));
    }
}

/* Both call it: their stacks differ only by one return address. */
__attribute__((noinline)) static void *shared(size_t bytes) {
    void *p = malloc(bytes);
    hazard_sink = p;
    return p;
}

__attribute__((noinline)) static void left(void) {
    free(shared(24 * 4096));
    hazard_sink = NULL;
}

__attribute__((noinline)) static void right(void) {
    free(shared(24 * 4096));
    hazard_sink = &hazard_sink;
}

static bool are_twins(const struct tcl_site *one, const struct tcl_site *other) {
    return one->frame_count == other->frame_count && one->frames[0] == other->frames[0] &&
           one->frames[1] != other->frames[1];
}

__attribute__((noinline)) static void *deep(int depth) {
    void *p = depth ? deep(depth - 1) : malloc(20 * 4096);
    hazard_sink = p;
    return p;
}

__attribute__((noinline)) static void random_frame(size_t bytes) {
    char *room = __builtin_alloca(bytes);
    hazard_sink = room;
    free(malloc(8192));
}

static int hosted(void) {
    left();
    right();
    for (int i = 0; i < DEEP; i++)
        free(deep(i));
    unsigned seed = 1;
    for (int i = 0; i < RANDOM_FRAMES; i++) {
        seed = seed * 1664525u + 1013904223u;
        random_frame(16 + (seed >> 12) % 60000);
    }
    generated();
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted();
    (void)argv;
    struct daemon d = {0};
    host(&d, "hosted");
    struct tcl_header *header = header_of(d.session[0]);
    CHECK(header->site_count == TCL_SITES_NAMED, "%u sites", header->site_count);
    CHECK(header->site_overflows > 1000, "%u overflows", header->site_overflows);
    struct tcl_site *sites = (void *)(d.session[0]->base + TCL_SITES_AT);
    int longest = 0, twins = 0;
    for (uint32_t i = 1; i < 400; i++) {
        longest = sites[i].frame_count > longest ? sites[i].frame_count : longest;
        for (uint32_t k = 1; k < i; k++)
            twins += are_twins(&sites[i], &sites[k]);
    }
    CHECK(twins == 1, "%d pairs of sites differ by their caller alone", twins);
    CHECK(longest == TCL_SITE_FRAMES, "%d frames", longest);
    printf("track_sites: %u sites, %u refused and counted\n", header->site_count,
           header->site_overflows);
    close_daemon(&d);
    return 0;
}
