/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * birth.c: which arena a new object is born in.
 * In: its size, its site, the phase; the control page and the plan table. Out: an arena.
 * Knows nothing of memory: an arena is a number here.
 *
 *   the arena that the caller requests (traits.c)   else   the plan's row for (site, class, phase)
 *   else   the caller's hint   else   the plan's arena for births without a row
 *   else   the kernel's arena, while the nodes' memory and no budget is the limit
 *   then the next arena with budget left, from there on; the last one is never refused
 *
 * Nothing is copied at attach: births read the plan where the daemon writes it, and cache the last
 * decision of each site until the plan, the phase or the object's size class changes.
 *
 *   decided[site]   generation : 24 | phase : 8 | class : 8 | share : 8 | other : 8 | arena : 8
 */
#include "session.h"

/* Of a cached decision: the plan's generation, and the session's epoch above its low 16 bits. What
 * is left of 64 bits after five fields of 8. */
#define GENERATION_BITS 24
/* Bytes of dead objects that a thread keeps for its next births: one credit that it took ahead, and
 * as much again. Chosen, not measured. */
#define CREDIT_MAX (2 * TCL_BIRTH_CREDIT)

/* The size by which plans know a block: of most of them, mimalloc's small pages. */
#define BLOCK_BYTES ((size_t)64 << 10)

_Static_assert(TCL_PHASES_MAX <= 256 && TCL_ARENAS_MAX <= 256,
               "a cached_decision has 8 bits for each");

struct budget_cache {
    uint32_t epoch, arena;
    int64_t credit; /* bytes taken ahead from the birth budget of `arena` */
};
static _Thread_local struct budget_cache budget_cache;
static _Thread_local uint8_t preferred, hinted; /* arena + 1; 0: none */

static _Atomic uint64_t decided[TCL_SITES_MAX];
static _Atomic uint32_t split_births[TCL_SITES_MAX]; /* births of sites that are split */
static _Atomic uint32_t numbered_births_so_far[TCL_SITES_MAX];

/* Clamped, because the daemon may write anything. */
static inline uint32_t arena_count(const struct tcl_control *control) {
    uint32_t count = __atomic_load_n(&control->arena_count, __ATOMIC_ACQUIRE);
    return count <= TCL_ARENAS_MAX ? count : 0;
}

/* TCL_ARENA_UNKNOWN: there is none. */
static inline uint32_t kernel_arena(const struct tcl_control *control) {
    uint32_t arena = __atomic_load_n(&control->kernel_arena, __ATOMIC_RELAXED) - 1;
    return tcl_likely(arena < TCL_ARENAS_MAX) ? arena : TCL_ARENA_UNKNOWN;
}

/* Whether only births are in an arena whose row names it. */
static inline bool is_nursery(const struct tcl_control *control, uint32_t arena) {
    return arena + 1 == __atomic_load_n(&control->nursery_arena, __ATOMIC_RELAXED);
}

/* tcl_control.plan: the number of its rows, below its generation. */
static inline uint64_t current_plan(const struct tcl_control *control) {
    return __atomic_load_n(&control->plan, __ATOMIC_ACQUIRE);
}
static inline uint32_t plan_rows(uint64_t plan) {
    return (uint32_t)plan;
}
static inline uint32_t plan_generation(uint64_t plan) {
    return (uint32_t)(plan >> 32);
}

/* A cached decision, from the lowest bit on: the arena, the second arena, the share of the first,
 * and the key for which it was made. */
#define DECISION_BITS 24
static inline uint64_t decision_of(unsigned share, unsigned other, unsigned arena) {
    return (uint64_t)share << 16 | (uint64_t)other << 8 | arena;
}
static inline unsigned decision_arena(uint64_t decision) {
    return decision & 0xff;
}
static inline unsigned decision_other(uint64_t decision) {
    return decision >> 8 & 0xff;
}
static inline unsigned decision_share(uint64_t decision) {
    return decision >> 16 & 0xff;
}
/* The size class, the phase, and which plan of which process; as much as fits above a decision. */
static inline uint64_t decision_key(unsigned class, uint32_t phase, uint32_t generation,
                                    uint32_t epoch) {
    uint64_t which = generation + ((uint64_t)epoch << 16);
    uint64_t key = which << 16 | (uint64_t)phase << 8 | class;
    return key & ((1ull << (GENERATION_BITS + 16)) - 1);
}

/* ---- The plan -------------------------------------------------------------------------------- */

/* tcl_plan_row.size_class; an OS page has 2^12 bytes. */
static inline unsigned plan_class(size_t bytes) {
    size_t pages = bytes / TCL_PAGE + (bytes % TCL_PAGE != 0);
    return 12 + (pages <= 1 ? 0 : 64u - (unsigned)__builtin_clzll(pages - 1));
}

static bool is_before(const struct tcl_plan_row *row, const struct tcl_plan_row *key) {
    if (row->site != key->site)
        return row->site < key->site;
    if (row->size_class != key->size_class)
        return row->size_class < key->size_class;
    return row->phase < key->phase;
}

/* Finds the row with this key and fills in the rest. Bounded, whatever the table holds. */
static bool find_row(const struct tcl_plan_row *rows, uint32_t count, struct tcl_plan_row *key) {
    uint32_t first = 0, last = count;
    while (first < last) {
        uint32_t middle = first + (last - first) / 2;
        if (is_before(&rows[middle], key))
            first = middle + 1;
        else
            last = middle;
    }
    if (first == count)
        return false;
    struct tcl_plan_row row = rows[first];
    if (row.site != key->site || row.size_class != key->size_class || row.phase != key->phase)
        return false;
    *key = row;
    return true;
}

/* The plan's row for a birth; without one, both arenas are unknown. */
static struct tcl_plan_row read_plan(uint64_t plan, uint32_t site, unsigned class, uint64_t phase) {
    uint32_t count = plan_rows(plan);
    const struct tcl_plan_row *rows = tcl_plan_table(plan_generation(plan));
    uint64_t hash = tcl_site_hash(site);
    for (int way = 0; way < 4; way++) {
        struct tcl_plan_row row = {
            .site = hash,
            .size_class = way < 2 ? (uint8_t)class : TCL_PLAN_CLASS_ANY,
            .phase = way % 2 ? 0 : phase,
        };
        if (find_row(rows, count, &row))
            return row;
    }
    return (struct tcl_plan_row){
        .share = TCL_PLAN_SHARE_ALL,
        .other = TCL_ARENA_UNKNOWN,
        .arena = TCL_ARENA_UNKNOWN,
    };
}

/* The plan's decision. The plan has rows. */
static uint64_t cached_decision(uint64_t plan, size_t bytes, uint32_t site) {
    tcl_assert_debug(plan_rows(plan) != 0);
    if (tcl_unlikely(plan_rows(plan) > TCL_PLAN_ROWS_MAX || site >= TCL_SITES_MAX))
        return decision_of(TCL_PLAN_SHARE_ALL, 0, TCL_ARENA_UNKNOWN);
    uint32_t phase = tcl_phase_now();
    uint32_t epoch = atomic_load_explicit(&tcl_process->epoch, memory_order_relaxed);
    uint64_t key = decision_key(plan_class(bytes), phase, plan_generation(plan), epoch);
    uint64_t known = atomic_load_explicit(&decided[site], memory_order_relaxed);
    if (tcl_unlikely(known >> DECISION_BITS != key)) {
        struct tcl_plan_row row = read_plan(plan, site, plan_class(bytes), tcl_phase_hash(phase));
        known = key << DECISION_BITS | decision_of(row.share, row.other, row.arena);
        atomic_store_explicit(&decided[site], known, memory_order_relaxed);
    }
    return known;
}

/* The plan's arena; TCL_ARENA_UNKNOWN when it has none. Where a row splits its births, small
 * objects are placed round-robin, by its shares; large ones are all born in the second arena,
 * except for their ranges. */
static unsigned planned_arena(const struct tcl_control *control, uint64_t plan, size_t bytes,
                              uint32_t site) {
    uint64_t known = cached_decision(plan, bytes, site);
    unsigned arena = decision_arena(known), share = decision_share(known);
    if (tcl_unlikely(share != TCL_PLAN_SHARE_ALL && bytes >= TCL_CUT_BYTES)) {
        arena = decision_other(known);
    } else if (tcl_unlikely(share != TCL_PLAN_SHARE_ALL)) {
        uint64_t turn = atomic_fetch_add_explicit(&split_births[site], 1, memory_order_relaxed);
        bool mine = (turn + 1) * share / TCL_PLAN_SHARE_ALL != turn * share / TCL_PLAN_SHARE_ALL;
        arena = mine ? arena : decision_other(known);
    }
    if (arena == TCL_ARENA_UNKNOWN && hinted)
        return hinted - 1u;
    if (arena == TCL_ARENA_UNKNOWN)
        arena = __atomic_load_n(&control->unplanned_arena, __ATOMIC_RELAXED);
    return arena;
}

/* ---- The budget ------------------------------------------------------------------------------ */

static void flush_budget_cache(struct tcl_control *control) {
    if (budget_cache.credit > 0 && budget_cache.arena < TCL_ARENAS_MAX)
        __atomic_fetch_add(&control->birth_bytes_left[budget_cache.arena], budget_cache.credit,
                           __ATOMIC_RELAXED);
    budget_cache.credit = 0;
}

static struct budget_cache *current_budget_cache(void) {
    uint32_t epoch = atomic_load_explicit(&tcl_process->epoch, memory_order_relaxed);
    if (tcl_unlikely(budget_cache.epoch != epoch))
        budget_cache = (struct budget_cache){.epoch = epoch};
    return &budget_cache;
}

/* Charges `need` bytes to the first arena from `first` on with enough budget, or from arena 0 on
 * where the nursery has not; a nursery takes what asks for it alone. The thread's cache is used
 * first, if it is of arena `first`, or of any arena where the caller accepts `any`. */
static unsigned take_budget(struct tcl_control *control, uint32_t count, uint32_t first, bool any,
                            int64_t need) {
    tcl_assert_debug(need >= 0 && first < count && count <= TCL_ARENAS_MAX);
    struct budget_cache *mine = current_budget_cache();
    any = any && !is_nursery(control, mine->arena);
    if (mine->credit >= need && mine->arena < count && (any || mine->arena == first)) {
        mine->credit -= need;
        return mine->arena;
    }
    if (first + 1 >= count)
        return count - 1;
    flush_budget_cache(control);
    int64_t ask = need < TCL_BIRTH_CREDIT ? TCL_BIRTH_CREDIT : need;
    uint32_t nursery = is_nursery(control, first) ? first : TCL_ARENA_UNKNOWN;
    if (nursery == first &&
        __atomic_load_n(&control->birth_bytes_left[nursery], __ATOMIC_RELAXED) < need)
        first = 0;
    for (uint32_t arena = first; arena + 1 < count; arena++) {
        int64_t *left = &control->birth_bytes_left[arena];
        if (__atomic_load_n(left, __ATOMIC_RELAXED) < need ||
            (is_nursery(control, arena) && arena != nursery))
            continue;
        if (__atomic_load_n(left, __ATOMIC_RELAXED) < ask)
            ask = need;
        __atomic_fetch_sub(left, ask, __ATOMIC_RELAXED);
        mine->credit = ask - need;
        mine->arena = arena;
        return arena;
    }
    return count - 1;
}

void tcl_birth_refund(unsigned arena, size_t bytes) {
    if (tcl_unlikely(!tcl_attached()))
        return;
    struct tcl_control *control = tcl_control();
    if (arena + 1u >= arena_count(control))
        return;
    struct budget_cache *mine = current_budget_cache();
    /* What is large is for whichever thread asks next. */
    if (bytes < TCL_BIRTH_CREDIT && mine->arena == arena &&
        mine->credit + (int64_t)bytes <= CREDIT_MAX)
        mine->credit += (int64_t)bytes;
    else
        __atomic_fetch_add(&control->birth_bytes_left[arena], (int64_t)bytes, __ATOMIC_RELAXED);
}

/* ---- Births ---------------------------------------------------------------------------------- */

static unsigned arena_of_birth(size_t bytes, uint32_t site) {
    if (tcl_unlikely(!tcl_attached()))
        return 0;
    tcl_ring_check();
    struct tcl_control *control = tcl_control();
    uint32_t count = arena_count(control);
    if (count <= 1 || bytes > INT64_MAX)
        return 0;
    uint32_t arena = preferred ? preferred - 1u : TCL_ARENA_UNKNOWN;
    uint64_t plan = current_plan(control);
    if (tcl_unlikely(plan_rows(plan)) && arena >= count)
        arena = planned_arena(control, plan, bytes, site);
    else if (tcl_unlikely(hinted) && arena >= count)
        arena = hinted - 1u;
    bool any = arena >= count;
    if (any && !plan_rows(plan) && (arena = kernel_arena(control)) != TCL_ARENA_UNKNOWN)
        return arena;
    return take_budget(control, count, any ? 0 : arena, any, (int64_t)bytes);
}

unsigned tcl_birth_arena(size_t bytes, uint32_t site) {
    tcl_session_poll(bytes);
    return arena_of_birth(bytes, site);
}

uint32_t tcl_birth_site(size_t bytes, void *return_address, void *frame_address) {
    uint32_t site = tcl_site_here(return_address, frame_address);
    if (tcl_likely(bytes < TCL_NUMBERED_BYTES) || !site || site >= TCL_SITES_MAX || !tcl_attached())
        return site;
    uint32_t most = __atomic_load_n(&tcl_control()->numbered_births, __ATOMIC_RELAXED);
    most = most < TCL_NUMBERED_MAX ? most : TCL_NUMBERED_MAX;
    if (tcl_likely(atomic_load_explicit(&numbered_births_so_far[site], memory_order_relaxed) >=
                   most))
        return site;
    uint32_t number =
        atomic_fetch_add_explicit(&numbered_births_so_far[site], 1, memory_order_relaxed) + 1;
    return number <= most ? tcl_site_numbered(site, number) : site;
}

struct tcl_birth tcl_birth_here(size_t bytes, void *return_address, void *frame_address) {
    tcl_session_poll(bytes);
    struct tcl_birth birth = {.site = tcl_birth_site(bytes, return_address, frame_address)};
    birth.arena = arena_of_birth(bytes, birth.site);
    return birth;
}

/* Charges to an arena as much of `most` bytes as it has left, in whole steps; nothing below
 * `least`. */
static size_t reserve(struct tcl_control *control, unsigned arena, size_t most, size_t least,
                      size_t step) {
    tcl_assert_debug(arena < TCL_ARENAS_MAX && step && !(step & (step - 1)));
    int64_t *left = &control->birth_bytes_left[arena];
    int64_t had = __atomic_load_n(left, __ATOMIC_RELAXED);
    for (;;) {
        size_t room = had > 0 ? (size_t)had : 0;
        size_t head = (room < most ? room : most) & -step;
        if (head < least || tcl_arena_node(arena) < 0)
            return 0;
        if (__atomic_compare_exchange_n(left, &had, had - (int64_t)head, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            return head;
    }
}

/* Where a part of an object begins, in whole OS pages: the nearest. As crates/wire computes it. */
static size_t part_at(size_t bytes, uint16_t part) {
    size_t pages = bytes / TCL_PAGE;
    size_t rest = (pages % TCL_PLAN_PARTS * part + TCL_PLAN_PARTS / 2) / TCL_PLAN_PARTS;
    return (pages / TCL_PLAN_PARTS * part + rest) * TCL_PAGE;
}

/* The ranges that a row states, as far as the budget goes. Whatever the row holds, they are inside
 * the object and apart. */
static void reserve_ranges(struct tcl_control *control, size_t bytes,
                           const struct tcl_plan_row *row, struct tcl_split *split) {
    size_t end = 0;
    for (unsigned i = 0; i < TCL_PLAN_RANGES; i++) {
        size_t from = part_at(bytes, row->ranges[i].from), to = part_at(bytes, row->ranges[i].to);
        from = from < end ? end : from;
        if (from >= to)
            continue;
        size_t step = to - from >= TCL_HEAD_WHOLE ? TCL_HEAD_STEP : TCL_PAGE;
        from = (from & -step) < end ? end : from & -step;
        to &= -step;
        size_t got = from < to ? reserve(control, split->arena, to - from, step, step) : 0;
        if (!got)
            continue;
        split->ranges[split->count++] = (struct tcl_split_range){from, got};
        end = from + got;
    }
}

/* The ranges of the plan's row; `arena` is the second arena of that row. */
static struct tcl_split planned_split(struct tcl_control *control, uint64_t plan, size_t bytes,
                                      uint32_t site, unsigned arena) {
    uint64_t known = cached_decision(plan, bytes, site);
    struct tcl_split split = {.arena = decision_arena(known), .is_planned = true};
    if (decision_share(known) == TCL_PLAN_SHARE_ALL || split.arena >= arena ||
        bytes < TCL_CUT_BYTES)
        return split;
    struct tcl_plan_row row =
        read_plan(plan, site, plan_class(bytes), tcl_phase_hash(tcl_phase_now()));
    reserve_ranges(control, bytes, &row, &split);
    return split;
}

/* Whether the plan says where births of a site go, and not the budget. */
static bool is_placed(const struct tcl_control *control, uint64_t plan, size_t bytes,
                      uint32_t site) {
    return __atomic_load_n(&control->unplanned_arena, __ATOMIC_RELAXED) != TCL_ARENA_UNKNOWN ||
           decision_arena(cached_decision(plan, bytes, site)) != TCL_ARENA_UNKNOWN;
}

struct tcl_split tcl_birth_split(size_t bytes, uint32_t site, unsigned arena) {
    struct tcl_split split = {0};
    if (tcl_unlikely(!tcl_attached()) || preferred)
        return split;
    struct tcl_control *control = tcl_control();
    uint64_t plan = current_plan(control);
    if (arena >= arena_count(control))
        return split;
    if (plan_rows(plan) && is_placed(control, plan, bytes, site))
        return planned_split(control, plan, bytes, site, arena);
    for (unsigned k = 0; k < arena && !hinted && !split.count; k++) {
        if (is_nursery(control, k))
            continue;
        size_t head = reserve(control, k, bytes - 1, TCL_HEAD_LEAST, TCL_PAGE);
        split.arena = k;
        split.count = head > 0;
        split.ranges[0].bytes = head;
    }
    return split;
}

unsigned tcl_birth_mapped(size_t bytes, uint32_t site, bool is_reserved) {
    if (tcl_unlikely(!tcl_attached()))
        return TCL_ARENA_UNKNOWN;
    struct tcl_control *control = tcl_control();
    uint32_t count = arena_count(control);
    if (count <= 1 || bytes > INT64_MAX)
        return TCL_ARENA_UNKNOWN;
    uint64_t plan = current_plan(control);
    if (is_reserved && (!plan_rows(plan) || planned_arena(control, plan, bytes, site) >= count)) {
        int64_t left = __atomic_load_n(&control->birth_bytes_left[0], __ATOMIC_RELAXED);
        return left >= (int64_t)bytes ? TCL_ARENA_UNKNOWN : count - 1;
    }
    return arena_of_birth(bytes, site);
}

bool tcl_birth_grow(unsigned arena, size_t bytes) {
    if (tcl_unlikely(!tcl_attached()))
        return true;
    struct tcl_control *control = tcl_control();
    if (arena + 1u >= arena_count(control) || bytes > INT64_MAX)
        return true;
    struct budget_cache *mine = current_budget_cache();
    if (mine->arena == arena && mine->credit >= (int64_t)bytes) {
        mine->credit -= (int64_t)bytes;
        return true;
    }
    int64_t *left = &control->birth_bytes_left[arena], need = (int64_t)bytes;
    if (__atomic_load_n(left, __ATOMIC_RELAXED) < need)
        return false;
    __atomic_fetch_sub(left, need, __ATOMIC_RELAXED);
    return true;
}

void tcl_birth_prefer(unsigned arena, unsigned hint) {
    preferred = arena < TCL_ARENAS_MAX ? (uint8_t)(arena + 1) : 0;
    hinted = hint < TCL_ARENAS_MAX ? (uint8_t)(hint + 1) : 0;
}

static bool has_budget(const struct tcl_control *control, unsigned arena) {
    return __atomic_load_n(&control->birth_bytes_left[arena], __ATOMIC_RELAXED) > 0;
}

/* The first arena from `arena` on that has budget left; the last is never refused. An empty nursery
 * is as arena 0. */
static unsigned with_budget(const struct tcl_control *control, uint32_t count, unsigned arena) {
    if (is_nursery(control, arena) && has_budget(control, arena))
        return arena;
    arena = is_nursery(control, arena) ? 0 : arena;
    while (arena + 1 < count && (is_nursery(control, arena) || !has_budget(control, arena)))
        arena++;
    return arena;
}

unsigned tcl_small_arena(uint32_t site) {
    if (tcl_unlikely(!tcl_attached()))
        return 0;
    struct tcl_control *control = tcl_control();
    uint32_t count = arena_count(control), arena = kernel_arena(control);
    uint64_t plan = current_plan(control);
    if (count > 1 && arena != TCL_ARENA_UNKNOWN && !plan_rows(plan))
        return arena;
    arena = __atomic_load_n(&control->small_arena, __ATOMIC_RELAXED);
    if (site && plan_rows(plan)) {
        unsigned planned = planned_arena(control, plan, BLOCK_BYTES, site);
        arena = planned < count ? planned : arena;
    }
    return arena < count ? with_budget(control, count, arena) : 0;
}

unsigned tcl_heat_arena(enum tcl_temperature heat) {
    if (tcl_unlikely(!tcl_attached()))
        return 0;
    struct tcl_control *control = tcl_control();
    uint32_t count = arena_count(control);
    if (count <= 1)
        return 0;
    return heat == TCL_COLD ? count - 1 : with_budget(control, count, 0);
}

bool tcl_birth_has_row(uint32_t site) {
    uint64_t plan = tcl_attached() ? current_plan(tcl_control()) : 0;
    if (!plan_rows(plan))
        return false;
    return decision_arena(cached_decision(plan, BLOCK_BYTES, site)) != TCL_ARENA_UNKNOWN;
}

void tcl_birth_charge(unsigned arena, size_t bytes) {
    if (tcl_attached() && arena + 1 < arena_count(tcl_control()))
        __atomic_fetch_sub(&tcl_control()->birth_bytes_left[arena], (int64_t)bytes,
                           __ATOMIC_RELAXED);
}

uint64_t tcl_fast_nodes(void) {
    return tcl_attached() ? __atomic_load_n(&tcl_control()->fast_nodes, __ATOMIC_RELAXED) : 0;
}

int tcl_own_node(void) {
    const struct tcl_control *control = tcl_offered_control();
    uint32_t count = arena_count(control);
    int node = count > 1 ? __atomic_load_n(&control->arena_node[count - 1], __ATOMIC_RELAXED)
                         : TCL_NODE_NONE;
    return node < TCL_NODE_MODELLED ? TCL_NODE_NONE : node;
}

int tcl_arena_node(unsigned arena) {
    if (!tcl_attached() || arena >= arena_count(tcl_control()))
        return TCL_NODE_NONE;
    int node = __atomic_load_n(&tcl_control()->arena_node[arena], __ATOMIC_RELAXED);
    return node < TCL_NODE_MODELLED ? TCL_NODE_NONE : node;
}
