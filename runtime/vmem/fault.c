/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * fault.c: vpages that get their memory when they are first touched (VMem, 3.4).
 * In: vregions registered with TIERCEL_MAP_USERFAULT, touches. Out: homes, mapped, on the nodes of
 * the threads that touch. Knows nothing of moves or forks.
 *
 *   a thread touches --> the kernel holds it up --> a message --> a thread of the runtime
 *   it continues <---------------- wakes <-------- takes places, maps and fills them
 *
 * Such a vregion starts as empty private memory, registered with a userfaultfd. Its vpages have no
 * home until they are touched; then neighbours without a home get one, too, so that one message
 * serves several. Places are reserved for 2 MiB at a time, on the node that the vregion is bound
 * to, or else on the node of the first CPU that touches: memory that one thread registers and
 * others fill is near the latter. Only what is served is populated.
 *
 * Existing memory is never mapped over: the kernel is queried before, because the program may have
 * mapped something else there by a system call that the runtime does not see. In that case, or when
 * no place is available, the thread stops serving the vregion: the kernel serves the rest of it as
 * private memory, and waiting threads are woken. The kernel does the same when the program closes
 * the descriptor, and in a forked child.
 *
 * The thread polls for the next message for a while before it sleeps (`spin_us`): waking it takes
 * longer than serving.
 */
#define TIERCEL_RUNTIME
#include "../../include/tiercel.h"
#include "region.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Measured (docs/pools.md): with less, sequential touches cost at least twice as much; with more, a
 * fifth less, but memory may stay unused. Longer polling gains nothing, and occupies a CPU. */
#define AROUND_BYTES ((size_t)256 << 10)
#define SPIN_US 50u
#define SPIN_MAX_US 1000000u /* as tiercel.h states. Chosen, not measured */

/* Read at a time: 32 * 32 bytes of stack. Chosen, not measured. */
#define MESSAGES_MAX 32
/* CPUs whose node is cached; touches of others count as of node 0. Half of what CONFIG_NR_CPUS
 * allows on x86-64 (8192). */
#define CPUS_MAX 4096
#define NODES_WITH_CPUS_MAX                                                                        \
    256 /* of 1024; chosen, not measured: bounds the search by file names                          \
         */

static _Atomic size_t around_bytes = AROUND_BYTES;
static _Atomic unsigned spin_us = SPIN_US;

static _Atomic int server = -1; /* the userfaultfd */
static _Atomic enum { NOT_RUNNING, BEGINNING, RUNNING } state;

/* ---- The thread that touched ----------------------------------------------------------------- */

/* The CPU on which the thread runs or ran last; -1: it has ended. */
static int cpu_of(unsigned thread) {
    enum { FIELDS_BEFORE = 36 }; /* from `state`, the first after the name, to `processor` */
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/self/task/%u/stat", thread);
    const char *at = vmem_read_text(path, text, sizeof(text)) ? strrchr(text, ')') : NULL;
    for (int i = 0; at && i <= FIELDS_BEFORE; i++)
        at = strchr(at + 1, ' ');
    int cpu = -1;
    return at && sscanf(at, "%d", &cpu) == 1 ? cpu : -1;
}

static int node_of_cpu(int cpu) {
    static int16_t known[CPUS_MAX]; /* its node + 1 */
    if (cpu < 0 || cpu >= CPUS_MAX)
        return 0;
    for (int node = 0; !known[cpu] && node < NODES_WITH_CPUS_MAX; node++) {
        char path[64];
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/node%d", cpu, node);
        if (!syscall(SYS_faccessat, AT_FDCWD, path, F_OK))
            known[cpu] = (int16_t)(node + 1);
    }
    return known[cpu] ? known[cpu] - 1 : 0;
}

/* Where all CPUs are of one node, it is that one. */
static int node_of_thread(unsigned thread) {
    static int only = -2; /* -1: there are several */
    char text[256];
    if (only == -2) {
        bool is_known = vmem_read_text("/sys/devices/system/node/has_cpu", text, sizeof(text));
        only = !is_known ? 0 : strpbrk(text, ",-") ? -1 : atoi(text);
    }
    return only >= 0 ? only : node_of_cpu(cpu_of(thread));
}

/* ---- The vpages that are touched ------------------------------------------------------------- */

/* As vmem_map_place, with the vregion's rights from the first moment. */
static bool map_with_rights(const struct vmem_region *region, uintptr_t at, vmem_place place,
                            size_t bytes) {
    const int usual = PROT_READ | PROT_WRITE;
    bool is_usual = region->prot == usual;
    char *window = vmem_shared(place);
    bool is_shown = (is_usual || !syscall(SYS_mprotect, window, bytes, region->prot)) &&
                    vmem_map_place(at, place, bytes);
    if (!is_usual)
        syscall(SYS_mprotect, window, bytes, usual);
    return is_shown;
}

/* The registered memory is still there, and empty. For a single OS page the message implies it. */
static bool is_untouched(const struct vmem_region *region, uintptr_t at, size_t bytes) {
    if (bytes == TCL_PAGE)
        return true;
    bool is_open = vmem_track_open();
    vmem_query_open();
    bool is_any = true;
    size_t same = is_open ? vmem_find_memory(at, bytes, &is_any) : 0;
    bool is_so = same == bytes && !is_any && vmem_is_mapped_as(at, bytes, 0, region->prot);
    vmem_query_close();
    vmem_track_close();
    return is_so;
}

/* Vpages without a home around this one, within the same aligned `size` bytes, with contiguous
 * places in `list`, or none there: [*first, *first + result). */
static size_t around(const struct vmem_region *region, size_t vpage, size_t size,
                     const vmem_place *list, size_t *first) {
    size_t step = size >> region->shift ? size >> region->shift : 1;
    size_t base = region->start >> region->shift, low = (base + vpage) / step * step;
    size_t from = low > base ? low - base : 0, end = low + step - base;
    size_t count = region->bytes >> region->shift;
    for (*first = vpage; *first > from && !region->home[*first - 1]; --*first)
        if (vmem_run(region, list, *first - 1, 2) != 2)
            break;
    for (count = end < count ? end : count, end = vpage; end < count && !region->home[end];)
        end++;
    return vmem_run(region, list, *first, end - *first);
}

/* Reserves places for untouched vpages around this one, as their twins: vpages of a unit are then
 * contiguous in any order of touches, need few mappings and move in few runs. Twins are freed when
 * memory is short. False: there is no place even for this vpage. */
static bool reserve(struct vmem_region *region, size_t vpage, int node) {
    size_t first, count = around(region, vpage, VMEM_UNIT, region->twin, &first);
    size_t size = vmem_vpage(region);
    vmem_place place = vmem_take(node, count * size, size, true);
    if (!place) {
        first = vpage, count = 1;
        place = vmem_take(node, size, size, true);
    }
    if (!place && errno == ENOMEM && vmem_drop_twins())
        place = vmem_take(node, size, size, true);
    if (!place)
        return false;
    for (size_t i = 0; i < count; i++)
        region->twin[first + i] = place + i * (size / TCL_PAGE);
    vmem_twin_bytes += count * size;
    return true;
}

/* Maps the places that are reserved for these vpages; false: the program has mapped something there
 * by itself, or there are too many mappings. */
static bool back(struct vmem_region *region, size_t first, size_t count) {
    size_t bytes = count * vmem_vpage(region);
    uintptr_t at = region->start + first * vmem_vpage(region);
    if (!is_untouched(region, at, bytes) ||
        !map_with_rights(region, at, region->twin[first], bytes))
        return false;
    memcpy(&region->home[first], &region->twin[first], count * sizeof(vmem_place));
    memset(&region->twin[first], 0, count * sizeof(vmem_place));
    vmem_twin_bytes -= bytes;
    region->is_private = false;
    syscall(SYS_madvise, at, bytes,
            region->prot & PROT_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    return true;
}

/* The kernel serves vpages without a home from now on. */
static void stop_serving(int fd, struct vmem_region *region) {
    region->is_on_touch = false;
    vmem_drop_twin(region, 0, region->bytes >> region->shift);
    vmem_unregister(fd, -1, region->start, region->bytes);
    tcl_remark(TCL_REMARK_NO_VREGIONS);
}

/* Serves a touch. Returns the bytes, from *start, for which no thread needs to wait any longer. */
static size_t serve(int fd, uintptr_t at, unsigned thread, uintptr_t *start) {
    size_t bytes = TCL_PAGE;
    *start = at & -(uintptr_t)TCL_PAGE;
    vmem_lock_for_touch();
    struct vmem_region *region = vmem_region_over(at, 1);
    size_t vpage = region ? (at - region->start) >> region->shift : 0, first = vpage, count = 1;
    if (region && region->is_on_touch && !region->home[vpage]) {
        size_t size = atomic_load_explicit(&around_bytes, memory_order_relaxed);
        int node = region->node != TCL_NODE_NONE ? region->node : node_of_thread(thread);
        bool has_place = region->twin[vpage] || reserve(region, vpage, node);
        if (has_place)
            count = around(region, vpage, size, region->twin, &first);
        if (has_place && count > 1 && !back(region, first, count))
            first = vpage, count = 1;
        if (!region->home[vpage] && !(has_place && back(region, vpage, 1)))
            stop_serving(fd, region);
    }
    if (region) {
        *start = region->start + (first << region->shift);
        bytes = count << region->shift;
    }
    vmem_unlock();
    return bytes;
}

/* ---- The thread ------------------------------------------------------------------------------ */

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000;
}

/* Waits for messages, polling at first. */
static bool await(int fd) {
    struct pollfd wanted = {.fd = fd, .events = POLLIN};
    uint64_t until = now_us() + atomic_load_explicit(&spin_us, memory_order_relaxed);
    for (;;) {
        bool is_late = now_us() >= until;
        int ready = poll(&wanted, 1, is_late ? -1 : 0);
        if (ready > 0 || (ready < 0 && errno != EINTR))
            return ready > 0 && wanted.revents == POLLIN;
    }
}

/* The descriptor is checked after each wait: the program may have closed it, and its own file may
 * have the number now. During poll the kernel keeps it alive. */
static void *serve_all(void *descriptor) {
    int fd = (int)(intptr_t)descriptor;
    struct uffd_msg messages[MESSAGES_MAX];
    while (await(fd) && vmem_is_userfaultfd(fd)) {
        long got = syscall(SYS_read, fd, messages, sizeof(messages));
        for (long i = 0; i < got / (long)sizeof(*messages); i++) {
            const struct uffd_msg *message = &messages[i];
            if (message->event != UFFD_EVENT_PAGEFAULT)
                continue;
            struct uffdio_range range;
            uintptr_t start;
            range.len = serve(fd, (uintptr_t)message->arg.pagefault.address,
                              message->arg.pagefault.feat.ptid, &start);
            range.start = start;
            syscall(SYS_ioctl, fd, UFFDIO_WAKE, &range);
        }
    }
    return NULL;
}

static bool begin(void) {
    vmem_lock();
    int fd = vmem_can_track() ? vmem_open_userfaultfd(UFFD_FEATURE_THREAD_ID) : -1;
    vmem_unlock();
    bool is_begun = fd >= 0 && !vmem_start_thread(serve_all, (void *)(intptr_t)fd);
    if (fd >= 0 && !is_begun)
        syscall(SYS_close, fd);
    atomic_store(&server, is_begun ? fd : -1);
    return is_begun;
}

/* A userfaultfd belongs to the process that opened it: a child would register its parent's memory.
 * A child of a raw system call has run no fork handler. */
static void forget_if_inherited(void) {
    static long process; /* that knows of `server`; under the lock */
    long here = syscall(SYS_getpid);
    vmem_lock();
    if (process != here)
        vmem_forget_touches();
    process = here;
    vmem_unlock();
}

bool vmem_serve_touches(void) {
    int now = RUNNING;
    forget_if_inherited();
    if (atomic_load(&state) == RUNNING && !vmem_is_userfaultfd(atomic_load(&server)))
        atomic_compare_exchange_strong(&state, &now, NOT_RUNNING); /* that thread ends by itself */
    for (;;) {
        now = NOT_RUNNING;
        if (atomic_compare_exchange_strong(&state, &now, BEGINNING)) {
            bool is_begun = begin();
            atomic_store(&state, is_begun ? RUNNING : NOT_RUNNING);
            return is_begun;
        }
        if (now == RUNNING)
            return true;
        sched_yield();
    }
}

bool vmem_watch_touches(uintptr_t start, size_t bytes) {
    struct uffdio_register what = {.range = {start, bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    return !syscall(SYS_ioctl, atomic_load(&server), UFFDIO_REGISTER, &what);
}

void vmem_forget_touches(void) {
    if (vmem_is_userfaultfd(atomic_load(&server)))
        syscall(SYS_close, atomic_load(&server));
    atomic_store(&server, -1);
    atomic_store(&state, NOT_RUNNING);
}

TCL_EXPORT int tiercel_vregion_faults(size_t bytes, unsigned us) {
    bool is_power = bytes && !(bytes & (bytes - 1));
    if (!is_power || bytes < TCL_PAGE || bytes > VMEM_PIECE || us > SPIN_MAX_US) {
        errno = EINVAL;
        return -1;
    }
    atomic_store(&around_bytes, bytes);
    atomic_store(&spin_us, us);
    return 0;
}
