/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * mark.c: loops that the compiler marked, as phases.
 * In: entries and exits of loops, by code of `tiercel cc`. Out: phases, named function:line. Knows
 * nothing of how loops are chosen.
 *
 *   active --> the innermost marked loop that the main thread is in
 *
 *   a plan names it      entering it enters its phase, as tiercel_phase does
 *   it is being found    its phase is entered once the loop has lasted WORTH_MS, which is seen as
 *                        compiled code reports misses, or as it begins again; from then on at each
 *                        entry. One that is short on average is off for good
 *
 * Loops of other threads are not phases: of a process there is one at a time. A program that names
 * phases by itself has no others. A jump out of a loop leaves its phase on, until the loop around
 * it ends or another one begins.
 */
#include "../../include/tiercel_probe.h"
#include "session.h"
#include <errno.h>

/* Shorter phases are not worth a move: 10 ms copy 30 MB at 3 GB/s. */
#define WORTH_MS 10u
/* Entries by which a loop is judged. Chosen, not measured. */
#define JUDGED_ENTRIES 16u

static uintptr_t main_thread; /* its thread pointer */
static struct tiercel_probe_mark *active;

static bool is_main_thread(void) {
    return (uintptr_t)__builtin_thread_pointer() == main_thread;
}

void tcl_mark_start(void) {
    main_thread = (uintptr_t)__builtin_thread_pointer();
}

void tcl_mark_after_fork_child(void) {
    if (!is_main_thread())
        active = NULL;
    tcl_mark_start();
}

void tcl_mark_forget(void) {
    active = NULL;
}

static void announce(struct tiercel_probe_mark *mark) {
    if (mark->phase) {
        tcl_phase_return(mark->phase - 1);
        return;
    }
    uint32_t number = tcl_phase_enter(mark->name);
    mark->phase = number ? number + 1 : 0;
    mark->is_off = !number; /* there are too many */
}

void tcl_mark_look(void) {
    struct tiercel_probe_mark *mark = is_main_thread() ? active : NULL;
    if (mark && !mark->phase && !mark->is_off && !tcl_phases_are_own() &&
        tcl_now_ms() - mark->since_ms >= WORTH_MS)
        announce(mark);
}

/* It is planned, known, or was long enough so far. */
static bool is_phase(const struct tiercel_probe_mark *mark) {
    bool was_long = mark->entries && mark->total_ms >= mark->entries * WORTH_MS;
    return mark->is_planned || mark->phase || was_long;
}

TCL_EXPORT struct tiercel_probe_mark *tiercel_probe_enter(struct tiercel_probe_mark *mark) {
    if (!is_main_thread() || tcl_phases_are_own() || !tcl_tracking())
        return TIERCEL_PROBE_NOT_ENTERED;
    int saved = errno;
    tcl_session_want();
    struct tiercel_probe_mark *before = active;
    active = mark;
    mark->since_ms = tcl_now_ms();
    mark->outer = tcl_phase_now() + 1;
    if (tcl_attached() && is_phase(mark))
        announce(mark);
    errno = saved;
    return before;
}

/* The loop is over: whether it is worth its name. */
static void judge(struct tiercel_probe_mark *mark) {
    if (mark->is_planned || mark->entries == JUDGED_ENTRIES)
        return;
    mark->total_ms += (uint32_t)(tcl_now_ms() - mark->since_ms);
    mark->entries++;
    if (mark->entries == JUDGED_ENTRIES && mark->total_ms < JUDGED_ENTRIES * WORTH_MS)
        mark->is_off = 1;
}

TCL_EXPORT void tiercel_probe_exit(struct tiercel_probe_mark *mark,
                                   struct tiercel_probe_mark *before) {
    int saved = errno;
    active = before;
    judge(mark);
    if (tcl_attached() && !tcl_phases_are_own()) {
        uint32_t phase = !before ? 1 : before->phase ? before->phase : before->outer;
        tcl_phase_return(phase - 1);
    }
    errno = saved;
}
