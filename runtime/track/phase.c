/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * phase.c: phases that the program enters by tiercel_phase(), or its compiler by marks (mark.c).
 * In: names. Out: a number for each, in the session's table; records; a wait for moves, when the
 * daemon asks for one. Knows nothing of what a plan does in a phase.
 *
 *   known[0 "", 1 "setup", 2 "solve"]   private copies of the shared names, which are not read back
 *   current = 2
 *
 * An entry takes phase_lock with a bounded wait and is counted as lost without it: of two threads
 * that enter phases at once, one overrides the other anyway. The phase survives a change of
 * session.
 */
#define TIERCEL_RUNTIME
#include "../../include/tiercel.h"
#include "session.h"
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NO_PHASE UINT32_MAX

static struct tcl_phase_name known[TCL_PHASES_MAX];
static uint32_t known_count = 1; /* under phase_lock */
static uint32_t entries;         /* under phase_lock */
static _Atomic uint32_t current;
static _Atomic bool are_own; /* the program entered one by itself */

/* FNV-1a with the 64-bit offset basis and prime (draft-eastlake-fnv). */
static uint64_t hash_of(const char *name) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
    return hash ? hash : 1;
}

uint32_t tcl_phase_now(void) {
    return atomic_load_explicit(&current, memory_order_acquire);
}

uint64_t tcl_phase_hash(uint32_t number) {
    tcl_assert_debug(number < TCL_PHASES_MAX);
    return number ? known[number].hash : hash_of(TCL_PHASE_START);
}

static bool publish(uint32_t number) {
    tcl_assert_debug(number > 0 && number < TCL_PHASES_MAX);
    struct tcl_phase_name *to = &tcl_phases()[number];
    if (!tcl_provide(to, sizeof(*to)))
        return false;
    memcpy(to, &known[number], sizeof(*to));
    __atomic_store_n(&to->published, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&tcl_header()->phase_count, number + 1, __ATOMIC_RELEASE);
    return true;
}

static void publish_entry(uint32_t number) {
    tcl_assert_debug(tcl_is_locked(&tcl_process->phase_lock) && number < known_count);
    uint64_t word = (uint64_t)entries << 32 | number;
    __atomic_store_n(&tcl_header()->phase_entered, word, __ATOMIC_RELEASE);
}

bool tcl_phase_republish(void) {
    if (!tcl_lock(&tcl_process->phase_lock))
        return false;
    bool whole = true;
    for (uint32_t number = 1; whole && number < known_count; number++)
        whole = publish(number);
    entries = 0;
    if (whole)
        publish_entry(atomic_load_explicit(&current, memory_order_relaxed));
    tcl_unlock(&tcl_process->phase_lock);
    return whole;
}

/* NO_PHASE when the table is full. Under phase_lock. */
static uint32_t find_or_add(const char *name) {
    tcl_assert_debug(tcl_is_locked(&tcl_process->phase_lock) && known_count <= TCL_PHASES_MAX);
    uint64_t hash = hash_of(name);
    for (uint32_t number = 1; number < known_count; number++)
        if (known[number].hash == hash)
            return number;
    if (known_count == TCL_PHASES_MAX)
        return NO_PHASE;
    struct tcl_phase_name *fresh = &known[known_count];
    fresh->hash = hash;
    fresh->name_bytes = (uint8_t)strnlen(name, TCL_PHASE_NAME_MAX);
    memcpy(fresh->name, name, fresh->name_bytes);
    return publish(known_count) ? known_count++ : NO_PHASE;
}

static bool has_moves(uint64_t hash) {
    const struct tcl_control *control = tcl_control();
    for (uint32_t i = 0; i < TCL_STOPS_MAX; i++) {
        uint64_t stop = __atomic_load_n(&control->stops[i], __ATOMIC_RELAXED);
        if (!stop || stop == hash)
            return stop != 0;
    }
    return false;
}

/* Returns when the daemon has executed the plan's moves for this entry, or after phase_wait_ms. */
static void await_moves(uint32_t entry, uint64_t hash) {
    struct tcl_control *control = tcl_control();
    uint32_t wait_ms = __atomic_load_n(&control->phase_wait_ms, __ATOMIC_RELAXED);
    if (!wait_ms || !has_moves(hash))
        return;
    wait_ms = wait_ms > TCL_PHASE_WAIT_MS_MAX ? TCL_PHASE_WAIT_MS_MAX : wait_ms;
    uint64_t began = tcl_now_ms(), passed;
    while ((passed = tcl_now_ms() - began) < wait_ms && tcl_attached()) {
        uint32_t done = __atomic_load_n(&control->phase_done, __ATOMIC_ACQUIRE);
        if ((int32_t)(done - entry) >= 0 || __atomic_load_n(&control->detach, __ATOMIC_RELAXED))
            return;
        uint64_t left_ms = wait_ms - passed;
        struct timespec left = {(time_t)(left_ms / 1000), (long)(left_ms % 1000) * 1000000};
        /* Every result, also EAGAIN, EINTR and ETIMEDOUT, leads back to the loop's conditions. */
        syscall(SYS_futex, &control->phase_done, FUTEX_WAIT, done, &left, NULL, 0);
    }
}

/* Makes a phase current: `name`, or without a name the one with this number. */
static uint32_t make_current(const char *name, uint32_t number) {
    uint32_t entry = 0;
    uint64_t hash = 0;
    if (!tcl_lock(&tcl_process->phase_lock))
        number = NO_PHASE;
    else {
        number = name ? find_or_add(name) : number < known_count ? number : NO_PHASE;
        if (number != NO_PHASE) {
            hash = tcl_phase_hash(number);
            entry = ++entries;
            atomic_store_explicit(&current, number, memory_order_release);
            publish_entry(number);
            tcl_note_phase(number);
        }
        tcl_unlock(&tcl_process->phase_lock);
    }
    if (number == NO_PHASE && tcl_attached())
        __atomic_fetch_add(&tcl_header()->phase_overflows, 1, __ATOMIC_RELAXED);
    else if (number != NO_PHASE)
        await_moves(entry, hash);
    return number;
}

bool tcl_phases_are_own(void) {
    return atomic_load_explicit(&are_own, memory_order_relaxed);
}

uint32_t tcl_phase_enter(const char *name) {
    uint32_t number = make_current(name, 0);
    return number == NO_PHASE ? 0 : number;
}

void tcl_phase_return(uint32_t number) {
    if (number != tcl_phase_now())
        make_current(NULL, number);
}

TCL_EXPORT void tiercel_phase(const char *name) {
    int saved = errno;
    tcl_session_want();
    if (!name || !tcl_attached())
        return;
    atomic_store_explicit(&are_own, true, memory_order_relaxed);
    make_current(name, 0);
    errno = saved;
}
