/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * session.c: when a process attaches to the daemon, and when it detaches.
 * In: TIERCEL_SOCKET, the offer; births, forks; a daemon that may start late, stop, stall or send
 * anything. Out: tcl_process, tcl_mode, calls of tcl_attach. Knows nothing of records, sites or
 * heaps.
 *
 * A process that hardly allocates is not worth a session: most processes of a build or of a shell
 * script. So a process attaches when it has allocated as much as the offer states, or at a birth
 * late enough, and a session finds what lives by then in the object table.
 *
 *   start --offer--> tracked, no session --births, time--> session --answer: refused--> detached
 *     |                ^        ^  '-- the attach failed: again, later --.                 |
 *     | no offer       |        '----------------------------------------'                 |
 *     v                '------- full, no answer, reader gone: again, later ----------------'
 *   alone
 *
 * After any failure the program runs as it would without us, with one exception: a seccomp filter
 * that was there when the program began and *kills* for memfd_create or socket. One that refuses
 * them (EPERM, ENOSYS) is an ordinary failure; under one that the program has installed, a process
 * does not attach. Nothing is printed: the daemon reports what failed.
 */
#include "session.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Time between failed attaches: 1 s, doubled up to 1 s << 6 = 64 s. Chosen, not measured: a daemon
 * that restarts finds its processes within about a minute. */
#define RETRY_MS 1000
#define RETRY_DOUBLINGS 6
/* A hello that is not answered for so long is said again: the daemon was restarted, or refused the
 * connection before it looked at the session. Chosen, not measured: some ticks of a busy daemon. */
#define ANSWER_MS 4000
/* Attempts at a lock word, and how many of them precede the first yield. Chosen, not measured: the
 * sections are a few microseconds long, but for populating memory and walking a stack. */
#define LOCK_SPINS 64
#define LOCK_YIELDS 2000

static struct tcl_process no_process;
struct tcl_process *tcl_process = &no_process;
_Atomic uint32_t tcl_mode;
_Atomic bool tcl_attach_due;

static _Atomic bool is_last_session; /* also of children */

static bool fork_holds_maps, fork_holds_sites;

static bool prepare(void);
static void back_heap(void);
static void attach_now(void);

void tcl_session_start(void) {
    int saved = errno;
    const char *path = secure_getenv(TCL_SOCKET_ENV);
    atomic_store(&tcl_mode, TCL_MODE_ALONE);
    if (path && *path && !getauxval(AT_SECURE) && tcl_set_daemon(path) && prepare()) {
        atomic_store(&tcl_mode, TCL_MODE_TRACKED);
        /* What it begins with counts as allocated: it may never allocate. */
        uint64_t begins_with = tcl_image_program_bytes();
        atomic_store(&tcl_process->born_bytes, begins_with);
        if (begins_with >= tcl_offer->attach_bytes)
            attach_now();
        if (!tcl_offer->attach_bytes)
            back_heap();
    }
    tcl_map_start();
    errno = saved;
}

/* Applies control.backing, once, as the program starts. Such a daemon wants processes to attach at
 * once. */
static void back_heap(void) {
    uint32_t backing = tcl_offered_control()->backing;
    bool is_none = backing == TCL_BACKING_KERNEL || backing > TCL_BACKING_VMEM;
    if (is_none || !tcl_attached() || !tcl_is_our_malloc())
        return;
    if (tcl_frugal)
        tcl_remark(TCL_REMARK_LIMITED);
    else
        tcl_vmem_back_heap();
}

/* ---- When ------------------------------------------------------------------------------------ */

/* Errors that another attempt would meet as well. */
static bool is_final(int error) {
    return error == EPERM || error == EACCES || error == ENOSYS || error == EFBIG;
}

static void attach_failed(struct tcl_process *process, enum tcl_step step, int error) {
    if (!process->has_failed)
        tcl_offer_failed(step, error);
    process->has_failed = true;
    if (is_final(error))
        atomic_store(&tcl_mode, TCL_MODE_ALONE);
    else if (process->tries < RETRY_DOUBLINGS)
        process->tries++;
}

/* A process lives from its start, a forked child from its first birth. */
static uint64_t note_begin(struct tcl_process *process, uint64_t now) {
    uint64_t began = 0;
    if (!atomic_compare_exchange_strong(&process->began_ms, &began, now))
        return began;
    tcl_offer_count(&tcl_offer->began);
    return now;
}

static void attach_once(struct tcl_process *process, uint64_t now) {
    note_begin(process, now);
    if (process->was_attached)
        tcl_offer_reopen(); /* of a daemon that was started since */
    if (atomic_load(&process->is_awaited) && process->tries < RETRY_DOUBLINGS)
        process->tries++;
    process->next_try_ms = now + ((uint64_t)RETRY_MS << process->tries);
    enum tcl_step failed = tcl_attach();
    if (failed) {
        attach_failed(process, failed, errno);
        return;
    }
    if (!process->was_attached)
        tcl_offer_count(&tcl_offer->attached);
    tcl_image_scan();
    tcl_probe_attached();
    process->was_attached = true;
    process->hello_ms = now;
    atomic_store(&process->is_awaited, true);
    if (!tcl_is_our_malloc())
        tcl_remark(TCL_REMARK_OWN_MALLOC);
}

/* A child of vfork shares this memory, and would attach it as its own. */
static bool is_own_process(struct tcl_process *process) {
    uint32_t pid = (uint32_t)syscall(SYS_getpid), none = 0;
    return atomic_compare_exchange_strong(&process->pid, &none, pid) || none == pid;
}

static void attach_now(void) {
    struct tcl_process *process = tcl_process;
    uint32_t free = 0;
    int saved = errno;
    if (tcl_in_fork || !is_own_process(process)) {
        errno = saved;
        return;
    }
    if (atomic_load(&is_last_session)) {
        tcl_session_detach("no more address space for a session");
    } else if (tcl_has_new_filter()) { /* it may kill for what attaching needs */
        atomic_store(&tcl_mode, TCL_MODE_ALONE);
    } else if (atomic_compare_exchange_strong(&process->attach_lock, &free, 1)) {
        uint64_t now = tcl_now_ms(); /* with the lock held by another thread, that one attaches */
        if (now >= process->next_try_ms)
            attach_once(process, now);
        tcl_unlock(&process->attach_lock);
    }
    errno = saved;
}

/* Counts a birth; true when it is time to attach. */
static bool is_worth_attaching(size_t bytes) {
    struct tcl_process *process = tcl_process;
    uint64_t born = atomic_fetch_add_explicit(&process->born_bytes, bytes, memory_order_relaxed);
    if (born + bytes >= tcl_offer->attach_bytes)
        return true;
    uint64_t now = tcl_now_ms();
    return now - note_begin(process, now) >= tcl_offer->attach_ms;
}

void tcl_session_poll(size_t bytes) {
    if (tcl_unlikely(!tcl_attached()) && tcl_tracking() && is_worth_attaching(bytes))
        attach_now();
    if (tcl_unlikely(atomic_load_explicit(&tcl_vmem_start_pending, memory_order_relaxed)))
        tcl_vmem_start_if_large();
}

void tcl_session_note_block(size_t bytes) {
    if (tcl_unlikely(!tcl_attached()) && is_worth_attaching(bytes))
        atomic_store_explicit(&tcl_attach_due, true, memory_order_relaxed);
}

void tcl_session_attach_due(void) {
    if (!tcl_in_fork && atomic_exchange(&tcl_attach_due, false) && !tcl_attached() &&
        tcl_tracking())
        attach_now();
}

void tcl_session_want(void) {
    if (tcl_unlikely(!tcl_attached()) && tcl_tracking())
        attach_now();
}

/* Later sessions would be mapped over addresses that are given back now. */
void tcl_session_limit(bool has_room) {
    if (has_room)
        tcl_session_want();
    if (tcl_attached()) {
        atomic_store(&is_last_session, true);
    } else if (tcl_tracking()) {
        tcl_offer_failed(TCL_STEP_MEMORY, ENOMEM);
        atomic_store(&tcl_mode, TCL_MODE_ALONE);
    }
}

void tcl_session_reattach(void) {
    attach_now();
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* The daemon leaves, or has no room: the latter may change. */
void tcl_session_asked_to_detach(void) {
    uint32_t answer = __atomic_load_n(&tcl_control()->answer, __ATOMIC_ACQUIRE);
    if (answer != 1 + TCL_REFUSED_FULL) {
        tcl_session_detach("detach requested by the daemon");
        return;
    }
    struct tcl_process *process = tcl_process;
    uint32_t free = 0;
    if (!atomic_compare_exchange_strong(&process->attach_lock, &free, 1))
        return;
    atomic_store(&process->is_awaited, false);
    atomic_store(&process->epoch, 0);
    if (process->tries < RETRY_DOUBLINGS)
        process->tries++;
    process->next_try_ms = tcl_now_ms() + ((uint64_t)RETRY_MS << process->tries);
    tcl_unlock(&process->attach_lock);
}

void tcl_session_await_answer(void) {
    struct tcl_process *process = tcl_process;
    uint32_t answer = __atomic_load_n(&tcl_control()->answer, __ATOMIC_ACQUIRE);
    if (answer == 1 + TCL_OK) {
        process->tries = 0;
        atomic_store(&process->is_awaited, false);
    } else if (!answer && tcl_now_ms() - process->hello_ms > ANSWER_MS) {
        tcl_session_reattach();
    }
}

void tcl_session_detach(const char *reason) {
    atomic_store(&tcl_mode, TCL_MODE_ALONE);
    if (!atomic_exchange(&tcl_process->epoch, 0))
        return;
    tcl_assert(tcl_shared); /* an epoch implies a mapping */
    struct tcl_header *header = tcl_header();
    strncpy(header->reason, reason, sizeof(header->reason) - 1);
    __atomic_store_n(&header->detached, 1, __ATOMIC_RELEASE);
}

bool tcl_tracking(void) {
    return atomic_load_explicit(&tcl_mode, memory_order_relaxed) == TCL_MODE_TRACKED;
}

bool tcl_lock(_Atomic uint32_t *word) {
    /* Two threads may have the same number; then one gives up too early, which is allowed. */
    uint32_t self = (uint32_t)((uintptr_t)__builtin_thread_pointer() >> 4) | 1;
    for (int i = 0; i < LOCK_YIELDS; i++) {
        uint32_t owner = 0;
        if (atomic_compare_exchange_strong_explicit(word, &owner, self, memory_order_acquire,
                                                    memory_order_relaxed))
            return true;
        if (owner == self)
            return false; /* a signal handler, which interrupted the section */
        if (i >= LOCK_SPINS)
            syscall(SYS_sched_yield);
    }
    return false;
}

uint64_t tcl_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Whose memory the program's malloc gives. */
static bool gives_our_memory(void *(*allocate)(size_t), void (*release)(void *)) {
    void *p = allocate(1);
    bool is_ours = tcl_heap_has(p);
    if (p && release)
        release(p);
    return is_ours;
}

/* False in a program that exports malloc itself, or whose other preload comes before us. A program
 * that is not position-independent and takes malloc's address seems to export it: what is found
 * there is a jump to ours. */
bool tcl_is_our_malloc(void) {
    static _Atomic int8_t known; /* 1: yes, -1: no */
    Dl_info theirs, ours;
    if (tcl_likely(atomic_load_explicit(&known, memory_order_relaxed)))
        return atomic_load_explicit(&known, memory_order_relaxed) > 0;
    void *found = dlsym(RTLD_DEFAULT, "malloc");
    bool is_ours =
        !found || !dladdr(found, &theirs) || !dladdr((void *)&tcl_session_start, &ours) ||
        theirs.dli_fbase == ours.dli_fbase ||
        gives_our_memory((void *(*)(size_t))found, (void (*)(void *))dlsym(RTLD_DEFAULT, "free"));
    atomic_store_explicit(&known, is_ours ? 1 : -1, memory_order_relaxed);
    return is_ours;
}

/* The runtime has no other output: of an assertion that failed. */
void tcl_warn(const char *what) {
    char line[256] = "tiercel: ";
    size_t used = strlen(line), bytes = strnlen(what, sizeof(line) - used - 1);
    memcpy(line + used, what, bytes);
    line[used + bytes] = '\n';
    syscall(SYS_write, STDERR_FILENO, line, used + bytes + 1);
}

/* ---- Start and fork -------------------------------------------------------------------------- */

/* The child needs consistent copies of the tables. Its locks are wiped, so it needs no handler. */
void tcl_session_before_fork(void) {
    if (!tcl_process)
        return;
    tcl_image_before_fork();
    fork_holds_maps = tcl_lock(&tcl_process->map_lock);
    fork_holds_sites = tcl_lock(&tcl_process->site_lock);
}

void tcl_session_after_fork_parent(void) {
    if (fork_holds_sites)
        tcl_unlock(&tcl_process->site_lock);
    if (fork_holds_maps)
        tcl_unlock(&tcl_process->map_lock);
    tcl_image_after_fork_parent();
    if (tcl_attached())
        __atomic_fetch_add(&tcl_header()->forks, 1, __ATOMIC_RELAXED);
}

void tcl_session_after_fork_child(void) {
    tcl_probe_after_fork_child();
    tcl_image_after_fork_child();
}

/* The page that a forked child finds empty. */
static bool prepare(void) {
    struct tcl_process *process =
        tcl_os_mmap(NULL, TCL_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (process == MAP_FAILED)
        return false;
    if (syscall(SYS_madvise, process, TCL_PAGE, MADV_WIPEONFORK))
        return false; /* before Linux 4.14 */
    tcl_process = process;
    note_begin(process, tcl_now_ms());
    is_own_process(process);
    return true;
}
