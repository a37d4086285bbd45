/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * control_page.c: births, deaths, phases and moves under a daemon that writes anything at any time.
 * In: what the daemon writes, and what the program does. Out: arenas and heads within their bounds,
 * waits within theirs, moves of whole OS pages only. Knows nothing of an honest daemon.
 *
 * The input is a list of steps: u8 which, and what that step takes. Time stands still but for the
 * steps and waits that move it.
 */
#define TCL_ASSERT_LEVEL 2
#include "../track/session.h"
#include "input.h"
#include <stdarg.h>

static uint64_t now_ms;
static uint64_t made_now_ms(void) {
    return now_ms;
}
static long made_syscall(long number, ...);

#include "../assert.c"
#include "../track/attach.c"
#include "../track/fd.c"
#include "../track/offer.c"
#include "../track/session.c"
#define tcl_now_ms made_now_ms
#include "../keys.c"
#include "../track/birth.c"
#include "../track/image.c"
#include "../probe/cache.c"
#include "../probe/cells.c"
#include "../probe/probe.c"
#include "../track/ring.c"
#include "../track/site.c"
#include "../track/small_sites.c"
#include "../track/unwind.c"
#define syscall made_syscall
#include "../track/phase.c"
#include "../track/mark.c"
#define current move_current
#define execute execute_move
#include "../vmem/self_moves.c"
#undef execute
#undef current
#undef syscall

#define BASE 0x600000000000ull /* chosen: nothing is mapped there, or needs to be */
#define PAGES 4096u            /* chosen: a table of 64 KiB */
#define SITES 8u               /* the sites that there are, whose hashes are their numbers */
#define ROWS 64u               /* of each plan table that are written; all may be read */
/* Births of one step: more than a ring holds. */
#define MANY_MAX (TCL_RING_RECORDS + 100)

/* ---- The rest of the runtime ----------------------------------------------------------------- */

__thread bool tcl_in_fork;
bool tcl_forks_alone;
bool tcl_locks_opened, tcl_frugal;
bool tcl_os_bind(uintptr_t start, size_t bytes, int node) {
    (void)start, (void)bytes, (void)node;
    return true;
}
_Atomic bool tcl_limit_due;
bool tcl_limit_look(void) {
    atomic_store(&tcl_limit_due, false);
    return false;
}
_Atomic bool tcl_clock_is_forbidden;
bool tcl_is_filtered(void) {
    return false;
}
bool tcl_has_new_filter(void) {
    return false;
}
void tcl_range(uintptr_t *base, size_t *pages) {
    *base = BASE;
    *pages = PAGES;
}
void tcl_range_parts(size_t *small, size_t *runs, size_t *end) {
    *small = *runs = PAGES / 2;
    *end = PAGES;
}
bool tcl_heap_has(const void *p) {
    return (uintptr_t)p - BASE < (uintptr_t)PAGES * TCL_PAGE;
}
int tcl_os_munmap(void *addr, size_t bytes) {
    return munmap(addr, bytes);
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
void tcl_vmem_back_heap(void) {}
void *tcl_os_mmap(void *addr, size_t bytes, int prot, int flags, int fd, long offset) {
    return mmap(addr, bytes, prot, flags, fd, offset);
}
bool vmem_is_pooled(void) {
    return true;
}
bool vmem_can_track(void) {
    return true;
}
bool vmem_private_can_move(void) {
    return true;
}
bool vmem_private_start(void) {
    return true;
}
void vmem_lock(void) {}
void vmem_unlock(void) {}
void vmem_after_children(void) {}
void vmem_end_thread(void) {}
bool vmem_has_no_program_thread(void) {
    return true;
}
int vmem_threads(void) {
    return 1;
}
int vmem_start_thread(void *(*work)(void *), void *argument) {
    (void)work, (void)argument;
    return EAGAIN;
}
int vmem_start_joinable(pthread_t *thread, void *(*work)(void *), void *argument) {
    (void)thread, (void)work, (void)argument;
    return EAGAIN;
}
size_t tcl_heap_open_bytes(void) {
    return 0;
}
size_t tcl_small_bytes(void) {
    return 0;
}

size_t vmem_move_range(uintptr_t start, size_t bytes, int node, bool (*is_wanted)(void),
                       int *error) {
    MUST(start % TCL_PAGE == 0 && bytes % TCL_PAGE == 0 && start <= UINTPTR_MAX - bytes);
    MUST(node >= 0 && node < VMEM_NODES_MAX);
    *error = is_wanted() ? 0 : ECANCELED;
    return bytes;
}

/* A wait ends by its timeout. */
static long made_syscall(long number, ...) {
    MUST(number == SYS_futex || number == SYS_getpid);
    if (number == SYS_futex) {
        va_list rest;
        va_start(rest, number);
        va_arg(rest, void *);
        int operation = va_arg(rest, int);
        va_arg(rest, uint32_t);
        const struct timespec *timeout = va_arg(rest, const struct timespec *);
        va_end(rest);
        if (operation == FUTEX_WAIT)
            now_ms += (uint64_t)timeout->tv_sec * 1000 + (uint64_t)timeout->tv_nsec / 1000000;
    }
    return 1;
}

/* ---- A session ------------------------------------------------------------------------------- */

static void start_once(void) {
    if (tcl_shared)
        return;
    int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    tcl_offer = mmap(NULL, TCL_OFFER_BYTES, rights, flags, -1, 0);
    MUST(tcl_offer != MAP_FAILED && prepare() && tcl_site_start());
    init_once();
    int memfd = make_session();
    MUST(memfd >= 0);
    close(memfd);
    atomic_store(&tcl_process->epoch, 1);
    MUST(tcl_site_republish());
    for (uint32_t site = 1; site <= SITES; site++)
        tables->site[site].hash = site;
    site_count = SITES + 1;
}

static void start_anew(void) {
    start_once();
    now_ms = 1;
    struct tcl_process *process = tcl_process;
    *process = (struct tcl_process){.next_try_ms = UINT64_MAX};
    atomic_store(&process->epoch, 1);
    atomic_store(&tcl_mode, TCL_MODE_TRACKED);
    memset(tcl_header(), 0, TCL_PAGE);
    memset(tcl_control(), 0, TCL_PAGE);
    for (uint32_t table = 0; table < 2; table++)
        memset(tcl_plan_table(table), 0, ROWS * sizeof(struct tcl_plan_row));
    memset(tcl_rings(), 0, offsetof(struct tcl_ring, records));
    memset(decided, 0, (SITES + 1) * sizeof(*decided));
    memset(split_births, 0, (SITES + 1) * sizeof(*split_births));
    memset(numbered_births_so_far, 0, sizeof(numbered_births_so_far));
    if (site_count > SITES + 1)
        memset(tables->index, 0, sizeof(tables->index));
    site_count = SITES + 1;
    budget_cache = (struct budget_cache){0};
    preferred = hinted = 0;
    writer = (struct ring_writer){.epoch = UINT32_MAX};
    atomic_store(&ring_owner[0], 0);
    atomic_store(&ring_saved[0].epoch, 0);
    known_count = 1, entries = 0, move_current = 0;
    atomic_store(&current, 0);
}

/* ---- What the daemon does -------------------------------------------------------------------- */

static void write_anything(struct input *in, void *page) {
    uint8_t bytes[32], count = take_u8(in) % sizeof(bytes);
    size_t at = take_u16(in) % (TCL_PAGE - sizeof(bytes));
    take_bytes(in, bytes, count);
    memcpy((char *)page + at, bytes, count);
}

static void write_arenas(struct input *in) {
    struct tcl_control *control = tcl_control();
    control->arena_count = take_u8(in) % (TCL_ARENAS_MAX + 2);
    control->small_arena = take_u8(in);
    control->unplanned_arena = take_u8(in);
    control->kernel_arena = take_u8(in) % (TCL_ARENAS_MAX + 2);
    control->nursery_arena = take_u8(in) % (TCL_ARENAS_MAX + 2);
    control->fast_nodes = take_u8(in);
    control->numbered_births = take_u16(in);
    for (unsigned arena = 0; arena < 3; arena++) {
        control->arena_node[arena] = (int8_t)take_u8(in);
        control->birth_bytes_left[arena] = (int64_t)take_u64(in);
    }
}

static void write_plan(struct input *in) {
    uint32_t generation = take_u8(in), row = take_u8(in) % ROWS;
    uint8_t fields[6];
    struct tcl_plan_range ranges[TCL_PLAN_RANGES];
    take_bytes(in, fields, sizeof(fields));
    for (unsigned i = 0; i < TCL_PLAN_RANGES; i++) {
        ranges[i].from = take_u16(in);
        ranges[i].to = take_u16(in);
    }
    static const char *const phases[] = {"one", "two", TCL_PHASE_START};
    tcl_plan_table(generation)[row] = (struct tcl_plan_row){
        .site = fields[0] % (SITES + 2),
        .phase = fields[1] % 4 == 3 ? 0 : hash_of(phases[fields[1] % 4]),
        .size_class = fields[2] % 4 ? fields[2] % 40 : TCL_PLAN_CLASS_ANY,
        .arena = fields[3],
        .other = fields[4],
        .share = fields[5],
        .ranges = {ranges[0], ranges[1], ranges[2], ranges[3]},
    };
    tcl_control()->plan = (uint64_t)generation << 32 | take_u16(in);
}

static void write_stop(struct input *in) {
    struct tcl_control *control = tcl_control();
    control->stops[take_u8(in) % TCL_STOPS_MAX] = hash_of(take_u8(in) % 2 ? "one" : "two");
    control->phase_wait_ms = (uint32_t)take_u64(in);
    control->phase_done = take_u8(in);
}

static void write_moves(struct input *in) {
    struct tcl_control *control = tcl_control();
    struct tcl_move *move = &control->moves[take_u8(in) % TCL_MOVES_MAX];
    *move = (struct tcl_move){.addr = take_u64(in), .bytes = take_u64(in)};
    uint8_t aligned = take_u8(in);
    if (aligned & 1)
        move->addr &= -(uint64_t)TCL_PAGE;
    if (aligned & 2)
        move->bytes &= -(uint64_t)TCL_PAGE;
    move->node = (int32_t)(int16_t)take_u16(in);
    control->move_count = take_u16(in);
    control->moves_asked++;
}

/* ---- What the program does ------------------------------------------------------------------- */

static size_t take_size(struct input *in) {
    size_t bytes = (size_t)(take_u16(in) + 1) << take_u8(in) % 32;
    return (bytes + TCL_PAGE - 1) & -(size_t)TCL_PAGE;
}

static void be_born(struct input *in) {
    size_t bytes = take_size(in);
    uint32_t site = take_u8(in) % (SITES + 2);
    unsigned arena = tcl_birth_arena(bytes, site);
    MUST(arena < TCL_ARENAS_MAX && tcl_arena_node(arena) >= TCL_NODE_MODELLED);
    struct tcl_split split = tcl_birth_split(bytes, site, arena);
    size_t end = 0;
    MUST(split.count <= TCL_PLAN_RANGES && (!split.count || split.arena < arena));
    for (unsigned i = 0; i < split.count; i++) {
        struct tcl_split_range range = split.ranges[i];
        MUST(range.at >= end && range.bytes && (range.at | range.bytes) % TCL_PAGE == 0);
        end = range.at + range.bytes;
    }
    MUST(end <= bytes);
    unsigned mapped = tcl_birth_mapped(bytes, site, bytes & 1);
    MUST(mapped == TCL_ARENA_UNKNOWN || mapped < TCL_ARENAS_MAX);
}

static void be_numbered(struct input *in) {
    tcl_image_check(); /* static data has sites of its own */
    uint32_t before = site_count;
    tcl_birth_site(TCL_NUMBERED_BYTES + take_u16(in), __builtin_return_address(0),
                   __builtin_frame_address(0));
    MUST(site_count - before <= 2);
}

static void note_many(struct input *in) {
    uint32_t count = take_u16(in) % MANY_MAX;
    for (uint32_t i = 0; i < count; i++) {
        struct tcl_use use = {.addr = BASE + i % PAGES * TCL_PAGE,
                              .bytes = TCL_PAGE,
                              .arena = (uint8_t)(i % TCL_ARENAS_MAX)};
        i % 3 ? tcl_note_born(&use) : tcl_note_died(&use);
    }
    struct ring_writer *mine = &writer;
    MUST(!mine->is_busy && mine->limit - mine->head <= TCL_RING_RECORDS);
}

static void enter_phase(struct input *in) {
    static const char *const names[] = {"one", "two", "", "three"};
    uint64_t began_ms = now_ms;
    tiercel_phase(names[take_u8(in) % 4]);
    MUST(now_ms - began_ms <= TCL_PHASE_WAIT_MS_MAX);
}

static void use_small(struct input *in) {
    uint32_t site = take_u8(in);
    unsigned arena = tcl_small_arena(site);
    const void *p = (const void *)(uintptr_t)(take_u16(in) * 16u + 16);
    if (take_u8(in) % 2)
        tcl_small_born(p, 64, site);
    else
        tcl_small_died(p);
    MUST(arena < TCL_ARENAS_MAX);
    tcl_birth_charge(arena, take_size(in));
    tcl_birth_refund(take_u8(in), take_size(in));
    tcl_note_idle(arena, take_size(in));
    MUST(tcl_own_node() >= TCL_NODE_MODELLED);
}

static void move(void) {
    uint32_t asked = tcl_control()->moves_asked;
    if (tcl_attached() && asked != move_current) {
        move_current = asked;
        execute_request();
    }
}

static void step_once(struct input *in) {
    switch (take_u8(in) % 14) {
    case 0:
        return write_anything(in, tcl_control());
    case 1:
        return write_anything(in, tcl_header());
    case 2:
        return write_anything(in, tcl_rings());
    case 3:
        return write_arenas(in);
    case 4:
        return write_plan(in);
    case 5:
        return write_stop(in);
    case 6:
        return write_moves(in);
    case 7:
        return be_born(in);
    case 8:
        return tcl_birth_prefer(take_u8(in), take_u8(in));
    case 9:
        return note_many(in);
    case 10:
        return enter_phase(in);
    case 11:
        return use_small(in);
    case 12:
        return be_numbered(in);
    default:
        now_ms += take_u16(in);
        tcl_ring_check();
        return move();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct input in = {data, bytes};
    start_anew();
    while (in.left)
        step_once(&in);
    return 0;
}
