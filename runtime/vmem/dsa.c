/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * dsa.c: copies by a device, where there is one: Intel's Data Streaming Accelerator.
 * In: two addresses and a length. Out: how much of that the device copied. Knows nothing of how the
 * rest is copied.
 *
 *   descriptor  --write()-->  /dev/dsa/wqD.Q, a work queue of type user (idxd driver)
 *   completion  <--the device writes it last: status, and how far it came
 *
 * The device uses this process's page tables (shared virtual memory), like one more thread that
 * only copies; but a fault is a status, not a signal. So it may read the program's own mappings,
 * which may be unmapped meanwhile: then the CPU copies the rest, and sees the fault.
 *
 * Submission by write() needs Linux 6.9 (6.1.91, 6.6.31), but no special instruction. Older kernels
 * return EINVAL. After any error but EAGAIN (a full queue), and any status but success and page
 * fault, the queue is not used again.
 *
 * One descriptor is submitted at a time, and waited for without a limit: no call cancels it, and
 * memory that a device may still write cannot be reused. A broken device that never completes
 * blocks the mover, and with it the lock of vregions.
 *
 * The completion is in an OS page that every forked child finds wiped, however it was forked. The
 * queue is bound to its opener's memory; if a child submitted to it (the kernel allows it before
 * 6.15), the device would copy in the parent. A word in that page shows a child that the queue is
 * not its own, and it opens one for itself.
 *
 * The search for a queue waits until something large moves. TIERCEL_DSA names the queue's file, or
 * is `off`; in tests a FIFO under that name replaces a device. This code has been tested only with
 * such a FIFO, never with a device.
 */
#include "region.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define FOLDER "/dev/dsa"
#define PATH_BYTES 256 /* chosen, not measured: the driver's names have some 10 */
/* Spins for the completion before the mover sleeps between them: 100 us, as a spin takes at least
 * 20 ns and a device copies 2 MiB in 70 us at 30 GB/s. */
#define SPINS_MAX 5000u
/* Chosen, not measured: 70 us with the usual timer slack of 50 us, as long as a copy. */
#define NAP_NS 20000

/* linux/idxd.h */
#define OPCODE_MEMMOVE 3u
#define OPCODE_AT 24
#define FLAG_COMPLETION_VALID 4u   /* IDXD_OP_FLAG_CRAV */
#define FLAG_COMPLETION_REQUEST 8u /* IDXD_OP_FLAG_RCR; not _BOF: a fault is a status */
#define STATUS_MASK 0x7f           /* the highest bit distinguishes faults at reads and writes */
#define STATUS_SUCCESS 1
#define STATUS_PAGE_FAULT 3
struct descriptor {
    uint32_t pasid; /* the kernel's to fill in */
    uint32_t flags_opcode;
    uint64_t completion, from, to;
    uint32_t bytes;
    uint32_t unused[7];
};
_Static_assert(sizeof(struct descriptor) == 64, "struct dsa_hw_desc");
_Static_assert(offsetof(struct descriptor, bytes) == 32, "struct dsa_hw_desc");
struct completion {
    _Atomic uint8_t status; /* 0: not yet */
    uint8_t result;
    uint16_t unused;
    uint32_t bytes; /* before a fault */
    uint64_t more[3];
};
_Static_assert(sizeof(struct completion) == 32, "struct dsa_completion_record");

static struct {
    struct completion completion; /* at a multiple of 64 bytes, which is enough for all devices */
    uint64_t is_ours;             /* 0: a child */
} * shared;

static enum { UNKNOWN = 0, YES, NO } availability;
static int queue = -1;
static struct stat queue_file;

/* ---- The queue ------------------------------------------------------------------------------- */

/* Accepts only files of the driver: another that takes writes but never completes would block. */
static bool is_device(dev_t number) {
    char path[64], bus[PATH_BYTES];
    snprintf(path, sizeof(path), "/sys/dev/char/%u:%u/subsystem", major(number), minor(number));
    long length = syscall(SYS_readlinkat, AT_FDCWD, path, bus, sizeof(bus) - 1);
    if (length < 4 || length >= (long)sizeof(bus) - 1)
        return false;
    bus[length] = 0;
    return !strcmp(bus + length - 4, "/dsa");
}

static bool open_queue(const char *path, bool is_named) {
    int flags = O_WRONLY | O_NONBLOCK | O_CLOEXEC;
    int fd = tcl_raise_fd((int)syscall(SYS_openat, AT_FDCWD, path, flags, 0));
    if (fd < 0)
        return false;
    bool is_seen = !fstat(fd, &queue_file);
    bool is_one = S_ISCHR(queue_file.st_mode) && is_device(queue_file.st_rdev);
    if (is_seen && (is_one || (is_named && S_ISFIFO(queue_file.st_mode)))) {
        queue = fd;
        return true;
    }
    syscall(SYS_close, fd);
    return false;
}

/* Opens the first usable queue in the folder, without readdir, which would allocate. */
static bool open_any(void) {
    struct entry {
        uint64_t inode, offset;
        unsigned short bytes;
        unsigned char type;
        char name[];
    };
    _Alignas(struct entry) char entries[1024];
    char path[PATH_BYTES];
    long got = 0;
    int folder = (int)syscall(SYS_openat, AT_FDCWD, FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (folder < 0)
        return false;
    while (queue < 0 && (got = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0)
        for (long at = 0; queue < 0 && at < got;) {
            const struct entry *entry = (const struct entry *)(entries + at);
            at += entry->bytes;
            if (strncmp(entry->name, "wq", 2))
                continue;
            snprintf(path, sizeof(path), "%s/%s", FOLDER, entry->name);
            open_queue(path, false);
        }
    syscall(SYS_close, folder);
    return queue >= 0;
}

static bool find(void) {
    const char *named = secure_getenv("TIERCEL_DSA");
    /* Not under a seccomp filter, because some filters kill for unexpected calls. */
    if (tcl_is_filtered())
        return false;
    bool is_found = named && *named ? strcmp(named, "off") && open_queue(named, true) : open_any();
    if (!is_found)
        return false;
    void *page =
        tcl_os_mmap(NULL, TCL_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return false;
    if (syscall(SYS_madvise, page, TCL_PAGE, MADV_WIPEONFORK)) {
        tcl_os_munmap(page, TCL_PAGE);
        return false;
    }
    shared = page;
    shared->is_ours = 1;
    return true;
}

/* The program may have closed the descriptor, and its own file may have the number now. */
static bool is_same_file(void) {
    struct stat now;
    return queue >= 0 && !fstat(queue, &now) && now.st_dev == queue_file.st_dev &&
           now.st_ino == queue_file.st_ino && now.st_rdev == queue_file.st_rdev;
}

static void close_queue(void) {
    if (is_same_file())
        syscall(SYS_close, queue);
    queue = -1;
    if (shared)
        tcl_os_munmap(shared, TCL_PAGE);
    shared = NULL;
    availability = NO;
}

bool vmem_dsa_is_available(void) {
    if (availability == YES && (!shared->is_ours || !is_same_file()))
        vmem_dsa_forget();
    if (availability == UNKNOWN) {
        availability = YES;
        if (!find())
            close_queue();
    }
    return availability == YES;
}

void vmem_dsa_forget(void) {
    close_queue();
    availability = UNKNOWN;
}

/* ---- One copy -------------------------------------------------------------------------------- */

/* 0 or an errno. A FIFO without a reader raises SIGPIPE, which the program must not see. */
static int submit(const struct descriptor *descriptor) {
    sigset_t pipe, before, pending;
    struct timespec now = {0};
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &pipe, &before, 8);
    bool was_pending =
        !syscall(SYS_rt_sigpending, &pending, 8) && sigismember(&pending, SIGPIPE) == 1;
    long wrote = syscall(SYS_write, queue, descriptor, sizeof(*descriptor));
    int error = wrote == sizeof(*descriptor) ? 0 : wrote < 0 ? errno : EIO;
    if (error == EPIPE && !was_pending)
        syscall(SYS_rt_sigtimedwait, &pipe, NULL, &now, 8);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
    return error;
}

/* The acquire pairs with the device's order: it writes the completion after the bytes. */
static int await(struct completion *completion) {
    struct timespec nap = {0, NAP_NS};
    int status;
    for (unsigned spins = 0;
         !(status = atomic_load_explicit(&completion->status, memory_order_acquire)); spins++) {
        if (spins >= SPINS_MAX)
            syscall(SYS_nanosleep, &nap, NULL);
#if defined(__SSE2__)
        _mm_pause();
#endif
    }
    return status & STATUS_MASK;
}

size_t vmem_dsa_copy(char *to, const char *from, size_t bytes) {
    tcl_assert_debug(vmem_is_locked() && bytes <= UINT32_MAX);
    if (!vmem_dsa_is_available())
        return 0;
    uint32_t flags = FLAG_COMPLETION_VALID | FLAG_COMPLETION_REQUEST;
    struct descriptor descriptor = {.flags_opcode = flags | OPCODE_MEMMOVE << OPCODE_AT,
                                    .completion = (uintptr_t)&shared->completion,
                                    .from = (uintptr_t)from,
                                    .to = (uintptr_t)to,
                                    .bytes = (uint32_t)bytes};
    /* Written here, so that its OS page is resident: a fault at the completion has no status. */
    shared->completion = (struct completion){0};
    atomic_thread_fence(memory_order_seq_cst);
    int error = submit(&descriptor);
    if (error) {
        if (error != EAGAIN)
            close_queue();
        return 0;
    }
    int status = await(&shared->completion);
    uint32_t copied = shared->completion.bytes;
    if (status == STATUS_SUCCESS)
        return bytes;
    if (status != STATUS_PAGE_FAULT)
        close_queue();
    /* Rounded down: the CPU copies whole OS pages, and may copy the last one again. */
    return status == STATUS_PAGE_FAULT && copied < bytes ? copied & -(size_t)TCL_PAGE : 0;
}
