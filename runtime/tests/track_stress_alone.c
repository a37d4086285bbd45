/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_stress_alone.c: the tracking half under ThreadSanitizer, without a heap: threads note
 * births and deaths, start and end, while a daemon drains and the process attaches again.
 */
// build: -fsanitize=thread -Wno-tsan -fno-omit-frame-pointer -ldl
#define EXIT_ROUNDS 1 /* the sanitizer leaves a thread before its last destructors */
#include "../assert.c"
#include "../keys.c"
#include "../track/attach.c"
#include "../track/birth.c"
#include "../track/fd.c"
#include "../track/image.c"
#include "../track/mark.c"
#include "../track/offer.c"
#include "../track/phase.c"
#include "../probe/cache.c"
#include "../probe/cells.c"
#include "../probe/probe.c"
#include "../track/ring.c"
#include "../track/session.c"
#include "../track/site.c"
#include "../track/small_sites.c"
#include "../track/unwind.c"
#include "hazard.h"

bool tcl_locks_opened, tcl_forks_alone;
_Atomic bool tcl_clock_is_forbidden;
__thread bool tcl_in_fork;
bool tcl_forks_alone;
bool tcl_is_filtered(void) {
    return false;
}
bool tcl_os_bind(uintptr_t start, size_t bytes, int node) {
    (void)start, (void)bytes, (void)node;
    return false;
}
bool tcl_has_new_filter(void) {
    return false;
}

#define THREADS 6      /* chosen: more than the CPUs of a small machine */
#define GENERATIONS 12 /* of threads; the process attaches again in the middle one */
#define NOTES 4000     /* chosen */
#define BASE 0x600000000000ull
#define PAGES (1u << 16)
#define PAGES_OF_A_PHASE 512

void tcl_range(uintptr_t *base, size_t *pages) {
    *base = BASE;
    *pages = PAGES;
}
void tcl_range_parts(size_t *small, size_t *runs, size_t *end) {
    *small = *runs = PAGES / 2;
    *end = PAGES;
}
void tcl_heap_each(void (*visit)(const struct tcl_use *, void *), void *context) {
    (void)visit, (void)context;
}
bool tcl_map_fill(void) {
    return true;
}
void tcl_map_start(void) {}
void tcl_map_image(uintptr_t addr, size_t bytes, uint32_t site) {
    (void)addr, (void)bytes, (void)site;
}
void tcl_map_image_gone(uintptr_t addr, size_t bytes) {
    (void)addr, (void)bytes;
}
bool tcl_frugal;
_Atomic bool tcl_vmem_start_pending;
void tcl_vmem_start_if_large(void) {}
bool tcl_vmem_is_mover(void) {
    return false;
}
void tcl_vmem_back_heap(void) {}
bool tcl_heap_has(const void *p) {
    return p != NULL;
}
void *tcl_os_mmap(void *addr, size_t bytes, int prot, int flags, int fd, long offset) {
    /* Past the sanitizer, to which mapping over memory in use would look like a race. */
    return (void *)syscall(SYS_mmap, addr, bytes, prot, flags, fd, offset);
}
int tcl_os_munmap(void *addr, size_t bytes) {
    return munmap(addr, bytes);
}

/* Every thread owns every THREADS-th OS page; a page's carve never changes, its generation does. */
static uint16_t generation[PAGES];

__attribute__((noinline)) static void note(uint32_t page, bool born) {
    struct tcl_use use = {.addr = BASE + (uint64_t)page * TCL_PAGE,
                          .bytes = TCL_PAGE,
                          .carve = 1,
                          .generation = generation[page]};
    struct tcl_birth birth =
        tcl_birth_here(TCL_PAGE, __builtin_return_address(0), __builtin_frame_address(0));
    use.site = birth.site;
    use.arena = (uint8_t)birth.arena;
    if (page % PAGES_OF_A_PHASE == 0)
        tiercel_phase(page % (2 * PAGES_OF_A_PHASE) ? "odd" : "even");
    if (born)
        tcl_note_born(&use);
    else
        tcl_note_died(&use);
    if (born)
        tcl_small_born((void *)use.addr, 100, use.site);
    else
        tcl_small_died((void *)use.addr);
}

static void *life(void *number) {
    uint32_t seed = (uint32_t)(uintptr_t)number, mine = seed % THREADS;
    for (int i = 0; i < NOTES; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t page = (seed >> 8) % (PAGES / THREADS) * THREADS + mine;
        generation[page]++;
        note(page, true);
        if (seed & 3)
            note(page, false);
    }
    return NULL;
}

/* Only this test triggers attaches: a reader without a CPU for a second would cause more. */
static void attach_not_before(uint64_t ms) {
    while (!tcl_lock(&tcl_process->attach_lock))
        ;
    tcl_process->next_try_ms = ms;
    tcl_unlock(&tcl_process->attach_lock);
}

static _Atomic bool done;
static void *daemon_life(void *context) {
    struct daemon *d = context;
    while (!done) {
        struct pollfd wait = {d->listener, POLLIN, 0};
        poll(&wait, 1, POLL_MS);
        if (wait.revents & POLLIN)
            accept_session(d);
        for (int i = 0; i < d->sessions; i++)
            drain(d->session[i]);
    }
    return NULL;
}

int main(void) {
    struct daemon d = {0};
    open_daemon(&d);
    setenv(TCL_SOCKET_ENV, d.path, 1);
    pthread_t server, thread[THREADS];
    pthread_create(&server, NULL, daemon_life, &d);
    tcl_session_start();
    CHECK(tcl_tracking(), "not attached");
    attach_not_before(UINT64_MAX);
    for (uintptr_t g = 0; g < GENERATIONS; g++) {
        for (uintptr_t i = 0; i < THREADS; i++)
            pthread_create(&thread[i], NULL, life, (void *)(g * THREADS + i));
        if (g == GENERATIONS / 2) {
            attach_not_before(0);
            tcl_session_reattach(); /* while the threads use the old session */
            attach_not_before(UINT64_MAX);
        }
        for (int i = 0; i < THREADS; i++)
            pthread_join(thread[i], NULL);
    }
    done = true;
    pthread_join(server, NULL);
    struct session *s = d.session[d.sessions - 1];
    drain(s);
    CHECK(d.sessions == 2, "%d sessions", d.sessions);
    printf("stress: %lu + %lu records, %lu lost and counted\n", d.session[0]->records, s->records,
           s->lost + s->without_ring);
    close_daemon(&d);
    return 0;
}
