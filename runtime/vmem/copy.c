/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * copy.c: copies memory that is being moved, by a device or by several threads where available.
 * In: two addresses and a length. Out: the copy; or false, when the program has unmapped the
 * source. Knows nothing of vregions.
 *
 *   claim   [ number of the copy | chunks left ]   the thread that decrements it owns the chunk
 *   work    to, from, bytes, how                   changes only while no chunks are left
 *   done    chunks that are copied                 the copy has ended when all are
 *
 * The mover takes chunks like its helpers. When none is left it waits for chunks that helpers have
 * begun, and for nothing else: a helper that is not running takes no chunk. A helper reads `work`
 * before it takes a chunk; if `work` is of another copy by then, the number differs and it takes
 * nothing. Taking a chunk releases these reads, and the mover acquires `claim` before it changes
 * `work`.
 *
 * Helpers are threads of the runtime with all signals blocked, asleep on `bell`. They are started
 * after a copy lacked them, before the next piece of a move takes the lock; and only where writes
 * can be tracked, because otherwise a process can move only while it has one thread. A child of a
 * fork has none until it moves something itself.
 *
 * A helper that is preempted within a chunk delays its mover until it runs again. Therefore there
 * are by default only as many as there are unused CPUs, and none in steps 4 to 6 of a move
 * (move.c), when the program waits for the mover: it then copies alone, without a device that may
 * be busy. They are not SCHED_IDLE threads: those would also run on busy CPUs, and once preempted
 * there wait much longer.
 */
#define TIERCEL_RUNTIME
#include "../../include/tiercel.h"
#include "region.h"
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* 12 us of copying; at the end the mover waits for half a chunk on average. */
#define CHUNK_BYTES ((size_t)64 << 10)
#define NUMBER_AT 16 /* bits for the chunks left; a piece has 32 */
#define CHUNKS_MAX ((1u << NUMBER_AT) - 1)
_Static_assert(VMEM_PIECE / CHUNK_BYTES <= CHUNKS_MAX, "no more than a piece is copied at once");
/* Less is copied by the mover alone: waking a helper takes 8 us, and it begins 25 us later. 256 KiB
 * take 47 us alone, some 40 shared (two CPUs of a virtual machine). */
#define SHARED_BYTES ((size_t)256 << 10)
/* Threads that copy: the most that a program may request (tiercel.h); and the default, at some 10
 * GB/s each enough for the bandwidth of a slow memory. Chosen, not measured. */
#define COPIERS_MAX 16
#define COPIERS_USUAL 4
#define UNKNOWN_COUNT (-1)
/* Spins for the last chunks before the mover sleeps: 20 to 50 us, at least twice what a chunk
 * takes. A helper that is running has finished by then. */
#define SPINS_MAX 1000

struct work {
    char *to;
    const char *from;
    size_t bytes;
    unsigned how;
};

static _Atomic uint64_t claim;
static _Atomic(char *) work_to;
static _Atomic(const char *) work_from;
static _Atomic size_t work_bytes;
static _Atomic unsigned work_how;
static _Atomic uint32_t done, bell;
static _Atomic bool is_lost;

static _Atomic int copiers_requested; /* by the program; 0: as CPUs are idle */
static _Atomic int helpers;           /* started */
static _Atomic bool needs_helpers;    /* a copy would have had more */
static int helpers_now;               /* that this move may have; UNKNOWN_COUNT; under the lock */

/* ---- One thread ------------------------------------------------------------------------------ */

/* Past the caches, because the program does not use next what is moved. */
static void stream(char *to, const char *from, size_t bytes) {
#if defined(__SSE2__)
    for (size_t i = 0; i < bytes; i += 64) {
        __m128i a = _mm_load_si128((const __m128i *)(from + i));
        __m128i b = _mm_load_si128((const __m128i *)(from + i + 16));
        __m128i c = _mm_load_si128((const __m128i *)(from + i + 32));
        __m128i d = _mm_load_si128((const __m128i *)(from + i + 48));
        _mm_stream_si128((__m128i *)(to + i), a);
        _mm_stream_si128((__m128i *)(to + i + 16), b);
        _mm_stream_si128((__m128i *)(to + i + 32), c);
        _mm_stream_si128((__m128i *)(to + i + 48), d);
    }
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}

/* Reads the program's mappings by a system call, which can fail, at 0.3 us more an OS page. */
static bool copy_alone(char *to, const char *from, size_t bytes, unsigned how) {
    if (how & VMEM_COPY_FALLIBLE)
        return vmem_read(to, from, bytes);
    stream(to, from, bytes);
    return true;
}

/* ---- Several threads ------------------------------------------------------------------------- */

static uint32_t chunks_of(size_t bytes) {
    return (uint32_t)((bytes + CHUNK_BYTES - 1) / CHUNK_BYTES);
}

static uint32_t chunks_left(uint64_t claimed) {
    return claimed & CHUNKS_MAX;
}

/* Takes a chunk of the current copy; false: none is left. */
static bool take(struct work *work, size_t *chunk) {
    uint64_t seen = atomic_load_explicit(&claim, memory_order_acquire);
    while (chunks_left(seen)) {
        *work = (struct work){.to = atomic_load_explicit(&work_to, memory_order_relaxed),
                              .from = atomic_load_explicit(&work_from, memory_order_relaxed),
                              .bytes = atomic_load_explicit(&work_bytes, memory_order_relaxed),
                              .how = atomic_load_explicit(&work_how, memory_order_relaxed)};
        *chunk = chunks_left(seen) - 1;
        if (atomic_compare_exchange_weak_explicit(&claim, &seen, seen - 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            return true;
    }
    return false;
}

/* Copies chunks while any are left. True: this thread completed the copy. */
static bool copy_chunks(void) {
    struct work work;
    size_t chunk;
    bool was_last = false;
    while (take(&work, &chunk)) {
        size_t at = chunk * CHUNK_BYTES, rest = work.bytes - at;
        if (!copy_alone(work.to + at, work.from + at, rest < CHUNK_BYTES ? rest : CHUNK_BYTES,
                        work.how))
            atomic_store_explicit(&is_lost, true, memory_order_relaxed);
        /* Pairs with the mover's acquire: the bytes, and is_lost. */
        uint32_t before = atomic_fetch_add_explicit(&done, 1, memory_order_release);
        was_last = before + 1 == chunks_of(work.bytes);
    }
    return was_last;
}

static void *help(void *nothing) {
    for (;;) {
        uint32_t seen_bell = atomic_load_explicit(&bell, memory_order_acquire);
        if (copy_chunks())
            syscall(SYS_futex, &done, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        syscall(SYS_futex, &bell, FUTEX_WAIT_PRIVATE, seen_bell, NULL, NULL, 0);
    }
    return nothing;
}

/* Waits for the chunks that helpers are copying. */
static void await_chunks(uint32_t count) {
    uint32_t copied;
    for (unsigned spins = 0; (copied = atomic_load_explicit(&done, memory_order_acquire)) != count;
         spins++) {
        if (spins >= SPINS_MAX)
            syscall(SYS_futex, &done, FUTEX_WAIT_PRIVATE, copied, NULL, NULL, 0);
#if defined(__SSE2__)
        _mm_pause();
#endif
    }
}

static bool copy_together(char *to, const char *from, size_t bytes, unsigned how) {
    uint32_t count = chunks_of(bytes);
    /* Helpers read `work` while chunks are left. */
    tcl_assert(!chunks_left(atomic_load_explicit(&claim, memory_order_acquire)));
    uint64_t number = atomic_load_explicit(&claim, memory_order_relaxed) >> NUMBER_AT;
    atomic_store_explicit(&work_to, to, memory_order_relaxed);
    atomic_store_explicit(&work_from, from, memory_order_relaxed);
    atomic_store_explicit(&work_bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&work_how, how, memory_order_relaxed);
    atomic_store_explicit(&done, 0, memory_order_relaxed);
    atomic_store_explicit(&is_lost, false, memory_order_relaxed);
    /* Pairs with the acquire of take. */
    atomic_store_explicit(&claim, (number + 1) << NUMBER_AT | count, memory_order_release);
    atomic_fetch_add_explicit(&bell, 1, memory_order_release);
    syscall(SYS_futex, &bell, FUTEX_WAKE_PRIVATE, helpers_now, NULL, NULL, 0);
    copy_chunks();
    await_chunks(count);
    return !atomic_load_explicit(&is_lost, memory_order_relaxed);
}

/* ---- Number of helpers ----------------------------------------------------------------------- */

/* Threads of all processes that run or wait for a CPU now; 0: unknown. /proc/loadavg has three
 * averages, then this number, a slash and the number of all threads (proc(5)). */
static int threads_running(void) {
    char text[128];
    const char *at = vmem_read_text("/proc/loadavg", text, sizeof(text)) ? text : NULL;
    for (int word = 0; at && word < 3; word++)
        at = strchr(at + (word > 0), ' ');
    return at ? atoi(at) : 0;
}

static int min_int(int a, int b) {
    return a < b ? a : b;
}

/* CPUs that this thread may use beyond one for each thread of the program, asleep or not; and no
 * more than are idle now, because other processes (ranks of the same job) use them, too. */
static int idle_cpus(void) {
    static _Atomic int online;
    cpu_set_t mine;
    int threads = vmem_threads(), running = threads_running();
    if (!atomic_load(&online))
        atomic_store(&online, get_nprocs());
    if (!threads || !running || sched_getaffinity(0, sizeof(mine), &mine))
        return 0;
    int free = CPU_COUNT(&mine) - (threads - atomic_load(&helpers));
    int idle = min_int(free, atomic_load(&online) - running);
    return idle > 0 ? idle : 0;
}

static int helpers_wanted(void) {
    int asked = atomic_load(&copiers_requested);
    return asked ? asked - 1 : min_int(idle_cpus(), COPIERS_USUAL - 1);
}

static bool has_helpers(void) {
    if (helpers_now == UNKNOWN_COUNT) {
        int have = atomic_load(&helpers), wanted = helpers_wanted();
        helpers_now = min_int(have, wanted);
        if (have < wanted)
            atomic_store(&needs_helpers, true);
    }
    return helpers_now > 0;
}

/* ---- Called by others ------------------------------------------------------------------------ */

bool vmem_copy(char *to, const char *from, size_t bytes, unsigned how) {
    tcl_assert_debug(vmem_is_locked() && bytes <= VMEM_PIECE);
    bool is_shared = bytes >= SHARED_BYTES && !(how & VMEM_COPY_HELD);
    size_t there = is_shared ? vmem_dsa_copy(to, from, bytes) : 0;
    if (there == bytes)
        return true;
    is_shared = is_shared && has_helpers();
    return (is_shared ? copy_together : copy_alone)(to + there, from + there, bytes - there, how);
}

void vmem_copy_begin(void) {
    helpers_now = UNKNOWN_COUNT;
}

void vmem_copy_prepare(void) {
    if (!atomic_load(&needs_helpers) || tcl_in_fork || !atomic_exchange(&needs_helpers, false))
        return;
    vmem_lock();
    int wanted = vmem_can_track() ? helpers_wanted() : 0;
    vmem_unlock();
    for (int have = atomic_load(&helpers); have < wanted;) {
        if (!atomic_compare_exchange_strong(&helpers, &have, have + 1))
            continue;
        if (vmem_start_thread(help, NULL)) { /* the process may have no more threads */
            atomic_fetch_sub(&helpers, 1);
            return;
        }
        have++;
    }
}

void vmem_copy_forget(void) {
    vmem_dsa_forget();
    atomic_store(&helpers, 0);
    atomic_store(&needs_helpers, false);
}

TCL_EXPORT int tiercel_vregion_copiers(int threads) {
    if (threads < 0 || threads > COPIERS_MAX) {
        errno = EINVAL;
        return -1;
    }
    atomic_store(&copiers_requested, threads);
    return 0;
}
