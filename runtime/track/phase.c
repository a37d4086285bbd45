/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * phase.c: the program says that another phase begins.
 * In: names. Out: a number for each, in the session's table; records; a wait for moves, when the
 * daemon asks for one. Knows nothing of what a plan does in a phase.
 *
 *   known[0 "", 1 "setup", 2 "solve"]   private twins of the shared names, which are never believed
 *   now = 2
 *
 * The lock is taken by whoever enters a phase, and never waited for long: two threads that enter
 * phases at once would undo each other anyway. A phase outlives the session it was entered in.
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

#define NOT_TOLD UINT32_MAX

static struct tcl_phase_name known[TCL_PHASES_MAX];
static uint32_t known_count = 1; /* under phase_lock */
static uint32_t entries;         /* under phase_lock */
static _Atomic uint32_t now;

/* FNV-1a. */
static uint64_t hash_of(const char *name) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
    return hash ? hash : 1;
}

uint32_t tcl_phase_now(void) {
    return atomic_load_explicit(&now, memory_order_acquire);
}

uint64_t tcl_phase_hash(uint32_t number) {
    return number ? known[number].hash : hash_of(TCL_PHASE_START);
}

static bool publish(uint32_t number) {
    struct tcl_phase_name *to = &tcl_phases()[number];
    if (!tcl_provide(to, sizeof(*to)))
        return false;
    memcpy(to, &known[number], sizeof(*to));
    __atomic_store_n(&to->published, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&tcl_header()->phase_count, number + 1, __ATOMIC_RELEASE);
    return true;
}

static void tell(uint32_t number) {
    uint64_t word = (uint64_t)entries << 32 | number;
    __atomic_store_n(&tcl_header()->phase_entered, word, __ATOMIC_RELEASE);
}

bool tcl_phase_republish(void) {
    if (!tcl_lock(&tcl_life->phase_lock))
        return false;
    bool whole = true;
    for (uint32_t number = 1; whole && number < known_count; number++)
        whole = publish(number);
    entries = 0;
    if (whole)
        tell(atomic_load_explicit(&now, memory_order_relaxed));
    tcl_unlock(&tcl_life->phase_lock);
    return whole;
}

/* Number of a name, old or new; NOT_TOLD when the table is full. Under phase_lock. */
static uint32_t number_for(const char *name) {
    uint64_t hash = hash_of(name);
    for (uint32_t number = 1; number < known_count; number++)
        if (known[number].hash == hash)
            return number;
    if (known_count == TCL_PHASES_MAX)
        return NOT_TOLD;
    struct tcl_phase_name *fresh = &known[known_count];
    fresh->hash = hash;
    fresh->name_bytes = (uint8_t)strnlen(name, TCL_PHASE_NAME_MAX);
    memcpy(fresh->name, name, fresh->name_bytes);
    return publish(known_count) ? known_count++ : NOT_TOLD;
}

static bool is_stop(uint64_t hash) {
    const struct tcl_control *control = tcl_control();
    for (uint32_t i = 0; i < TCL_STOPS_MAX; i++) {
        uint64_t stop = __atomic_load_n(&control->stops[i], __ATOMIC_RELAXED);
        if (!stop || stop == hash)
            return stop != 0;
    }
    return false;
}

/* Until the daemon has done what its plan asks for at this entry, or the time is over. */
static void await_moves(uint32_t entry, uint64_t hash) {
    struct tcl_control *control = tcl_control();
    uint32_t wait_ms = __atomic_load_n(&control->phase_wait_ms, __ATOMIC_RELAXED);
    if (!wait_ms || !is_stop(hash))
        return;
    wait_ms = wait_ms > TCL_PHASE_WAIT_MS_MAX ? TCL_PHASE_WAIT_MS_MAX : wait_ms;
    uint64_t began = tcl_now_ms(), passed;
    while ((passed = tcl_now_ms() - began) < wait_ms && tcl_attached()) {
        uint32_t done = __atomic_load_n(&control->phase_done, __ATOMIC_ACQUIRE);
        if ((int32_t)(done - entry) >= 0 || __atomic_load_n(&control->detach, __ATOMIC_RELAXED))
            return;
        uint64_t left_ms = wait_ms - passed;
        struct timespec left = {(time_t)(left_ms / 1000), (long)(left_ms % 1000) * 1000000};
        /* EAGAIN, EINTR, ETIMEDOUT: the loop's conditions tell. */
        syscall(SYS_futex, &control->phase_done, FUTEX_WAIT, done, &left, NULL, 0);
    }
}

TCL_EXPORT void tiercel_phase(const char *name) {
    int saved = errno;
    tcl_session_poll();
    if (!name || !tcl_attached())
        return;
    uint32_t number = NOT_TOLD, entry = 0;
    uint64_t hash = 0;
    if (tcl_lock(&tcl_life->phase_lock)) {
        number = number_for(name);
        if (number != NOT_TOLD) {
            hash = known[number].hash;
            entry = ++entries;
            atomic_store_explicit(&now, number, memory_order_release);
            tell(number);
            tcl_note_phase(number);
        }
        tcl_unlock(&tcl_life->phase_lock);
    }
    if (number == NOT_TOLD && tcl_attached())
        __atomic_fetch_add(&tcl_header()->phase_overflows, 1, __ATOMIC_RELAXED);
    else if (number != NOT_TOLD)
        await_moves(entry, hash);
    errno = saved;
}
