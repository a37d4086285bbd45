/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * small_sites.c: what each site keeps in small objects, from a sample of their births.
 * In: sampled births and their deaths. Out: figures by site, in the session; which sites should
 * have blocks apart. Knows nothing of blocks.
 *
 * One birth in `interval` bytes is sampled, by exponentially distributed gaps, as heap profilers
 * do. A sample of an object of s bytes then stands for s / (1 - e^(-s / interval)) bytes, which is
 * interval + s / 2 within 1% for the objects that come here. When more samples live than the table
 * should have, the interval doubles, and every second sample is dropped.
 */
#include "session.h"
#include <string.h>

/* Bytes from one sampled birth to the next, at first: 32 KiB, so that a site that keeps APART_BYTES
 * has 16 samples, within a quarter of that two times out of three. A sample costs 0.1 us and
 * 32 KiB of small objects 2 us or more to allocate. Estimated. */
#define INTERVAL 32768u
#define INTERVAL_MAX (1u << 30) /* of which a gap has at most 44 times as much: 63 * ln 2 */
/* Live samples: a table of so many sets of WAYS. 2^10 * 8 * 16 bytes = 128 KiB. */
#define SETS 1024u
#define WAYS 8u
/* Live samples before the interval doubles: half of the table, so that few sets are full. */
#define SAMPLES_MAX (SETS * WAYS / 2)

#ifndef APART_BYTES
/* Bytes that a site keeps in small objects before it gets blocks apart, and live samples of them.
 * Chosen: heap and first blocks of a site cost 30 KiB, a sixteenth of this. */
#define APART_BYTES (512u << 10)
#define APART_SAMPLES 8u
#endif

struct sample {
    uintptr_t addr; /* 0: none */
    uint32_t born_ms;
    uint16_t bytes, site;
};
_Static_assert(TCL_SITES_MAX <= 65536, "a sample has 16 bits for its site");

/* All under tcl_process->small_lock. A forked child has them as they were; a change that the fork
 * interrupted can have left a count wrong, and nothing else. */
static struct sample samples[SETS * WAYS];
static struct figures {
    uint64_t born_bytes, lived_ms;
    uint32_t births, lives, deaths;
    uint32_t live_sizes; /* the sum of their bytes */
} figures[TCL_SITES_MAX];
static uint32_t live_count, site_top; /* sites at or above were never sampled */
static _Atomic uint32_t interval = INTERVAL;

/* ---- Gaps ------------------------------------------------------------------------------------ */

static uint64_t draw(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull; /* xorshift64* (Vigna) */
}

/* -ln of a number from ]0, 1], in units of 2^-16. log2(1 + m) is m (4 - m) / 3 within 0.01. */
static uint64_t minus_ln(uint64_t uniform) {
    unsigned zeros = (unsigned)__builtin_clzll(uniform | 1);
    uint64_t m = (uniform << zeros << 1) >> 48;
    uint64_t log2 = m * ((4ull << 16) - m) / 3 >> 16;
    return ((uint64_t)(zeros + 1) * 65536 - log2) * 45426 >> 16; /* ln 2 * 2^16 */
}

int64_t tcl_small_gap(uint64_t *random) {
    if (!*random)
        *random = ((uintptr_t)random * 0x9e3779b97f4a7c15ull ^ tcl_now_ms()) | 1;
    uint64_t mean = atomic_load_explicit(&interval, memory_order_relaxed);
    return (int64_t)(mean * minus_ln(draw(random)) >> 16) + 1;
}

/* ---- The session's table --------------------------------------------------------------------- */

static uint64_t bytes_of(uint64_t count, uint64_t sizes) {
    return count * atomic_load_explicit(&interval, memory_order_relaxed) + sizes / 2;
}

static void publish_small(uint32_t site) {
    static uint32_t provided[TCL_SITES_MAX * sizeof(struct tcl_small) / TCL_PAGE]; /* epochs */
    uint32_t epoch = atomic_load_explicit(&tcl_process->epoch, memory_order_acquire);
    struct tcl_small *to = &tcl_smalls()[site];
    uint32_t *known = &provided[site * sizeof(*to) / TCL_PAGE];
    if (!epoch)
        return;
    if (*known != epoch && !tcl_provide(to, sizeof(*to)))
        return;
    *known = epoch;
    const struct figures *from = &figures[site];
    uint64_t mean_ms = from->deaths ? from->lived_ms / from->deaths : 0;
    __atomic_store_n(&to->born_bytes, from->born_bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&to->live_bytes, bytes_of(from->lives, from->live_sizes), __ATOMIC_RELAXED);
    __atomic_store_n(&to->births, from->births, __ATOMIC_RELAXED);
    __atomic_store_n(&to->lives, from->lives, __ATOMIC_RELAXED);
    __atomic_store_n(&to->deaths, from->deaths, __ATOMIC_RELAXED);
    __atomic_store_n(&to->life_ms, (uint32_t)mean_ms, __ATOMIC_RELAXED);
    if (site >= __atomic_load_n(&tcl_header()->small_top, __ATOMIC_RELAXED))
        __atomic_store_n(&tcl_header()->small_top, site + 1, __ATOMIC_RELEASE);
}

void tcl_small_republish(void) {
    if (!tcl_lock(&tcl_process->small_lock))
        return;
    for (uint32_t site = 0; site < site_top; site++)
        if (figures[site].births)
            publish_small(site);
    tcl_unlock(&tcl_process->small_lock);
}

/* ---- Samples --------------------------------------------------------------------------------- */

static struct sample *set_of(uintptr_t addr) {
    return &samples[((addr >> 4) * 0x9e3779b97f4a7c15ull >> 32 & (SETS - 1)) * WAYS];
}

static void add_live(const struct sample *one) {
    figures[one->site].lives++;
    figures[one->site].live_sizes += one->bytes;
    live_count++;
}

/* Doubles the interval. */
static void thin(void) {
    uint32_t now = atomic_load_explicit(&interval, memory_order_relaxed);
    if (now >= INTERVAL_MAX)
        return;
    atomic_store_explicit(&interval, now * 2, memory_order_relaxed);
    for (uint32_t site = 0; site < site_top; site++)
        figures[site].lives = figures[site].live_sizes = 0;
    live_count = 0;
    uint64_t random = now;
    for (struct sample *one = samples; one < samples + SETS * WAYS; one++) {
        if (one->addr && draw(&random) >> 63)
            one->addr = 0;
        else if (one->addr)
            add_live(one);
    }
    for (uint32_t site = 0; site < site_top; site++)
        if (figures[site].births)
            publish_small(site);
}

static bool enter_sample(const struct sample *one) {
    struct sample *set = set_of(one->addr);
    for (unsigned way = 0; way < WAYS; way++)
        if (!set[way].addr) {
            set[way] = *one;
            add_live(one);
            return true;
        }
    return false;
}

uint32_t tcl_small_site(void *return_address, void *frame_address) {
    return tcl_site_here(return_address, frame_address);
}

bool tcl_small_born(const void *p, size_t bytes, uint32_t site) {
    if (!tcl_attached() || site >= TCL_SITES_MAX || !tcl_lock(&tcl_process->small_lock))
        return false;
    struct sample one = {(uintptr_t)p, (uint32_t)tcl_now_ms(), (uint16_t)bytes, (uint16_t)site};
    struct figures *of = &figures[site];
    site_top = site < site_top ? site_top : site + 1;
    of->births++;
    of->born_bytes += bytes_of(1, bytes);
    if (live_count >= SAMPLES_MAX || !enter_sample(&one)) {
        thin();
        enter_sample(&one); /* its set may be full still: then its death will not be seen */
    }
    publish_small(site);
    bool keeps_much =
        of->lives >= APART_SAMPLES && bytes_of(of->lives, of->live_sizes) >= APART_BYTES;
    bool is_planned = site && tcl_birth_has_row(site);
    tcl_unlock(&tcl_process->small_lock);
    return site && (keeps_much || is_planned);
}

void tcl_small_died(const void *p) {
    if (!tcl_lock(&tcl_process->small_lock))
        return;
    struct sample *set = set_of((uintptr_t)p);
    for (unsigned way = 0; way < WAYS; way++) {
        struct sample *one = &set[way];
        struct figures *of = &figures[one->site];
        if (one->addr != (uintptr_t)p)
            continue;
        one->addr = 0;
        of->deaths++;
        of->lived_ms += (uint32_t)tcl_now_ms() - one->born_ms;
        of->lives -= of->lives > 0;
        of->live_sizes -= of->live_sizes < one->bytes ? of->live_sizes : one->bytes;
        live_count -= live_count > 0;
        publish_small(one->site);
        break;
    }
    tcl_unlock(&tcl_process->small_lock);
}
