/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * fault.c: vpages that get their memory when somebody touches them (VMem, 3.4).
 * In: vregions registered with TIERCEL_MAP_USERFAULT, touches. Out: homes, mapped; nodes of those
 * who touch. Knows nothing of moves or forks.
 *
 *   a thread touches --> the kernel holds it up --> a message --> a thread of the runtime
 *   it goes on <------------------ wakes <-------- takes places, maps and fills them
 *
 * Such a vregion begins as private memory with nothing in it, watched by a userfaultfd. Its vpages
 * have no home until they are touched; then some around get one as well, as far as they have none:
 * one message serves them all. Places are reserved for 2 MiB at a time, of the node that the
 * vregion is bound to, or else of the CPU whose thread touches first: what is registered by one
 * thread and filled by others lies where they run. Memory itself is made for what is served only.
 *
 * Nothing is mapped over what has something in it: the kernel is asked before, since the program
 * may have mapped something else there by a system call that the runtime does not see. Where that
 * is so, or where no place is to be had, the thread steps aside: the rest of the vregion becomes
 * the kernel's own, which serves it from then on, and who waits is woken. That is also what the
 * kernel does by itself when the program closes the descriptor, and in a forked child, whose vpages
 * without a home are private memory like any other.
 *
 * The thread looks for the next message for a while before it sleeps (`spin_us`): waking it up
 * takes longer than serving.
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

/* Measured (docs/pools.md): with less a touch in order costs twice as much and more; with more a
 * fifth less, and memory that nobody touches. Longer looking gains nothing, and takes a CPU. */
#define AROUND_BYTES ((size_t)256 << 10)
#define SPIN_US 50u
#define SPIN_MAX_US 1000000u

#define MESSAGES_MAX 32
#define CPUS_MAX 4096
#define NODES_WITH_CPUS_MAX 256

static _Atomic size_t around_bytes = AROUND_BYTES;
static _Atomic unsigned spin_us = SPIN_US;

static _Atomic int server = -1; /* the userfaultfd */
static _Atomic enum { NOT, BEGINNING, RUNNING } state;

/* ---- Who touched ----------------------------------------------------------------------------- */

/* That thread's CPU, or the last it had; -1: it is gone. */
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

/* Where all CPUs are of one node, nobody has to be asked. */
static int node_of_thread(unsigned thread) {
    static int only = -2; /* -1: there are several */
    char text[256];
    if (only == -2) {
        bool is_told = vmem_read_text("/sys/devices/system/node/has_cpu", text, sizeof(text));
        only = !is_told ? 0 : strpbrk(text, ",-") ? -1 : atoi(text);
    }
    return only >= 0 ? only : node_of_cpu(cpu_of(thread));
}

/* ---- What is touched ------------------------------------------------------------------------- */

/* As vmem_show, with the vregion's rights from the first moment. */
static bool show(const struct vmem_region *region, uintptr_t at, vmem_place place, size_t bytes) {
    const int usual = PROT_READ | PROT_WRITE;
    bool is_usual = region->prot == usual;
    char *window = vmem_shared(place);
    bool is_shown = (is_usual || !syscall(SYS_mprotect, window, bytes, region->prot)) &&
                    vmem_show(at, place, bytes);
    if (!is_usual)
        syscall(SYS_mprotect, window, bytes, usual);
    return is_shown;
}

/* Nothing is there but what we registered. Of a single OS page the message says so. */
static bool is_free(const struct vmem_region *region, uintptr_t at, size_t bytes) {
    if (bytes == TCL_PAGE)
        return true;
    bool is_open = vmem_track_open();
    vmem_look_open();
    bool is_any = true;
    size_t alike = is_open ? vmem_look_for_memory(at, bytes, &is_any) : 0;
    bool is_so = alike == bytes && !is_any && vmem_is_shown(at, bytes, 0, region->prot);
    vmem_look_close();
    vmem_track_close();
    return is_so;
}

/* Vpages without a home around this one, in the same `size` bytes by address, as far as their
 * places in `list` follow one another, or they have none: [*first, *first + result). */
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

/* Places for what was not touched yet around this vpage, as its twins: vpages of a unit lie side by
 * side whoever comes first, and need few mappings and move in few runs. What is short of memory
 * takes them back. False: there is not even one for the vpage. */
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

/* Shows these vpages the places they were given; false: the program mapped something there by
 * itself, or there are too many mappings. */
static bool back(struct vmem_region *region, size_t first, size_t count) {
    size_t bytes = count * vmem_vpage(region);
    uintptr_t at = region->start + first * vmem_vpage(region);
    if (!is_free(region, at, bytes) || !show(region, at, region->twin[first], bytes))
        return false;
    memcpy(&region->home[first], &region->twin[first], count * sizeof(vmem_place));
    memset(&region->twin[first], 0, count * sizeof(vmem_place));
    vmem_twin_bytes -= bytes;
    region->is_private = false;
    syscall(SYS_madvise, at, bytes,
            region->prot & PROT_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    return true;
}

/* What has no home is the kernel's from now on. */
static void step_aside(int fd, struct vmem_region *region) {
    static bool is_said;
    region->is_on_touch = false;
    vmem_drop_twin(region, 0, region->bytes >> region->shift);
    vmem_unregister(fd, -1, region->start, region->bytes);
    if (!is_said)
        tcl_say("memory for vregions cannot be had where it is touched; they go on with ordinary "
                "memory");
    is_said = true;
}

/* Bytes around `at` that need not wait any longer, from *start. */
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
            step_aside(fd, region);
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

/* Waits for messages, at first without sleeping. */
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

/* The descriptor is looked at after each wait: the program may have closed it, and its own file may
 * have the number now. While it is waited for, it lives. */
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
    bool is_begun = fd >= 0 && !vmem_begin_thread(serve_all, (void *)(intptr_t)fd);
    if (fd >= 0 && !is_begun)
        syscall(SYS_close, fd);
    atomic_store(&server, is_begun ? fd : -1);
    return is_begun;
}

/* The descriptor is of whoever opened it: through it a child would have its parent's memory
 * watched. A child of a raw system call has run no handler of a fork. */
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
        atomic_compare_exchange_strong(&state, &now, NOT); /* that thread ends by itself */
    for (;;) {
        now = NOT;
        if (atomic_compare_exchange_strong(&state, &now, BEGINNING)) {
            bool is_begun = begin();
            atomic_store(&state, is_begun ? RUNNING : NOT);
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
    atomic_store(&state, NOT);
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
