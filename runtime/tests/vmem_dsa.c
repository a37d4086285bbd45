/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_dsa.c: vregions keep their contents when a device copies: one that copies, faults, fails, is
 * busy or disappears, one whose descriptor the program closes, and one in a fork.
 *
 * The device is a FIFO whose reader, a thread of this program, executes descriptors. It does not
 * show how a real one behaves; only the layout is the kernel header's.
 */
#include "tiercel.h"
#include "vregion.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/idxd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define BYTES (6 * MIB) /* three pieces */
#define ENDS (MIB / 2)  /* less than 256 KiB at either end may be too small for a device */
#define OS_PAGE ((size_t)4096)
#define FULL_DESCRIPTORS (OS_PAGE / sizeof(struct dsa_hw_desc))
#define ABSENT_NODE 900 /* no machine has this node */

enum answer {
    COPY,
    FAULT_READING, /* in the middle of an OS page; the rest of the target is garbage */
    FAULT_WRITING,
    LIE, /* a fault behind the end */
    REFUSE,
    GO_AWAY, /* copies, and closes the FIFO */
};

static struct {
    char path[64];
    int fifo;
    pthread_t thread;
    _Atomic enum answer answer;
    _Atomic int descriptors;
    _Atomic size_t bytes;
} device;

static char folder[] = "/tmp/tiercel-dsa-XXXXXX";
static uint64_t *region;

/* ---- The stand-in ---------------------------------------------------------------------------- */

static void check_descriptor(const struct dsa_hw_desc *descriptor) {
    static const char zeroes[sizeof(*descriptor)];
    size_t known = offsetof(struct dsa_hw_desc, int_handle);
    CHECK(descriptor->flags == (IDXD_OP_FLAG_CRAV | IDXD_OP_FLAG_RCR), "%x", descriptor->flags);
    CHECK(descriptor->pasid == 0 && descriptor->priv == 0);
    CHECK(descriptor->completion_addr % 64 == 0 && descriptor->completion_addr);
    CHECK(descriptor->xfer_size <= 2 * MIB && descriptor->xfer_size >= MIB / 4);
    CHECK(descriptor->src_addr % OS_PAGE == 0 && descriptor->dst_addr % OS_PAGE == 0);
    CHECK(!memcmp((const char *)descriptor + known, zeroes, sizeof(zeroes) - known));
}

/* As a device does: an unmapped address raises no signal. */
static void carry(const struct dsa_hw_desc *descriptor, size_t bytes) {
    struct iovec to = {(void *)descriptor->dst_addr, bytes};
    struct iovec from = {(void *)descriptor->src_addr, bytes};
    CHECK(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)bytes);
    memset((char *)descriptor->dst_addr + bytes, 0xee, descriptor->xfer_size - bytes);
}

/* The status comes last. */
static void complete(const struct dsa_hw_desc *descriptor, uint8_t status, size_t bytes) {
    struct dsa_completion_record *record = (void *)descriptor->completion_addr;
    CHECK(record->status == DSA_COMP_NONE);
    record->bytes_completed = (uint32_t)bytes;
    __atomic_store_n(&record->status, status, __ATOMIC_RELEASE);
}

/* False: it was the last. */
static bool serve(const struct dsa_hw_desc *descriptor) {
    size_t bytes = descriptor->xfer_size, some = bytes / 3;
    enum answer answer = atomic_load(&device.answer);
    bool is_fault = answer == FAULT_READING || answer == FAULT_WRITING;
    check_descriptor(descriptor);
    atomic_fetch_add(&device.descriptors, 1);
    atomic_fetch_add(&device.bytes, bytes);
    carry(descriptor, is_fault ? some : answer == LIE || answer == REFUSE ? 0 : bytes);
    if (answer == GO_AWAY)
        CHECK(!close(device.fifo));
    if (answer == REFUSE)
        complete(descriptor, DSA_COMP_XFER_ERANGE, 0);
    else if (answer == LIE)
        complete(descriptor, DSA_COMP_PAGE_FAULT_NOBOF, bytes + 1);
    else if (is_fault)
        complete(descriptor, DSA_COMP_PAGE_FAULT_NOBOF | (answer == FAULT_WRITING ? 0x80 : 0),
                 some);
    else
        complete(descriptor, DSA_COMP_SUCCESS, 0);
    return answer != GO_AWAY;
}

static void *run_device(void *nothing) {
    struct dsa_hw_desc descriptor;
    bool is_over = false;
    while (!is_over) {
        CHECK(read(device.fifo, &descriptor, sizeof(descriptor)) == sizeof(descriptor));
        if (descriptor.opcode == DSA_OPCODE_MEMMOVE)
            is_over = !serve(&descriptor);
        else /* of the test's own: NOOP is nothing, DRAIN the end */
            is_over = descriptor.opcode == DSA_OPCODE_DRAIN;
    }
    return nothing;
}

/* Without a reader yet. */
static void make_device(const char *name) {
    snprintf(device.path, sizeof(device.path), "%s/%s", folder, name);
    CHECK(!mkfifo(device.path, 0600));
    device.fifo = open(device.path, O_RDWR | O_CLOEXEC);
    CHECK(device.fifo >= 0);
    atomic_store(&device.answer, COPY);
    atomic_store(&device.descriptors, 0);
    atomic_store(&device.bytes, 0);
    setenv("TIERCEL_DSA", device.path, 1);
}

static void start_device(void) {
    CHECK(!pthread_create(&device.thread, NULL, run_device, NULL));
}

static void put(int opcode) {
    struct dsa_hw_desc descriptor = {.opcode = (uint8_t)opcode};
    CHECK(write(device.fifo, &descriptor, sizeof(descriptor)) == sizeof(descriptor));
}

static void end_device(void) {
    put(DSA_OPCODE_DRAIN);
    pthread_join(device.thread, NULL);
    close(device.fifo);
    unlink(device.path);
}

/* ---- Moves ----------------------------------------------------------------------------------- */

static void make_region(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    region = tiercel_vregion_register(NULL, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(region != MAP_FAILED);
}

static void fill(uint64_t seed) {
    fill_words(region, BYTES, seed);
}

static void check_content(uint64_t seed) {
    check_words(region, BYTES, seed);
}

/* Descriptors that a move of all of it takes. */
static int move(uint64_t seed) {
    int before = atomic_load(&device.descriptors);
    fill(seed);
    CHECK(!tiercel_vregion_migrate(region, BYTES, ABSENT_NODE));
    check_content(seed);
    CHECK(!tiercel_vregion_migrate(region, BYTES, 0));
    check_content(seed);
    fill(seed + 1);
    CHECK(!tiercel_vregion_replicate(region, BYTES, ABSENT_NODE));
    CHECK(!tiercel_vregion_migrate(region, BYTES, ABSENT_NODE));
    check_content(seed + 1);
    CHECK(!tiercel_vregion_migrate(region, BYTES, 0));
    check_content(seed + 1);
    return atomic_load(&device.descriptors) - before;
}

static void device_results(void) {
    make_device("results");
    start_device();
    size_t before = atomic_load(&device.bytes);
    CHECK(move(1) >= 6);
    CHECK(atomic_load(&device.bytes) - before >= 2 * (BYTES - ENDS));
    for (enum answer answer = FAULT_READING; answer <= LIE; answer++) {
        atomic_store(&device.answer, answer);
        CHECK(move(10u * answer) >= 6, "answer %d", answer);
    }
    atomic_store(&device.answer, REFUSE);
    CHECK(move(60) == 1, "asked again");
    CHECK(move(70) == 0, "asked again");
    end_device();
}

/* A full queue is not waited for, and used again later. */
static void busy(void) {
    make_device("busy");
    CHECK(fcntl(device.fifo, F_SETPIPE_SZ, OS_PAGE) == (int)OS_PAGE);
    for (size_t i = 0; i < FULL_DESCRIPTORS; i++)
        put(DSA_OPCODE_NOOP);
    CHECK(move(1) == 0);
    start_device();
    for (int unread = 1; unread > 0;)
        CHECK(!ioctl(device.fifo, FIONREAD, &unread));
    CHECK(move(10) >= 6);
    end_device();
}

/* A reader that disappears causes neither a signal nor a wait. */
static void gone(void) {
    make_device("gone");
    start_device();
    CHECK(move(1) >= 6);
    atomic_store(&device.answer, GO_AWAY);
    CHECK(move(10) == 1);
    pthread_join(device.thread, NULL);
    CHECK(move(20) == 0);
    unlink(device.path);
}

/* Files that accept a descriptor but never complete it, and files that do not exist. */
static void no_device(const char *name) {
    make_device("none");
    setenv("TIERCEL_DSA", name, 1);
    CHECK(move(1) == 0);
    close(device.fifo);
    unlink(device.path);
}

/* The runtime's descriptor of the FIFO. */
static int find_descriptor(void) {
    DIR *folder = opendir("/proc/self/fd");
    struct stat fifo, file;
    int found = -1;
    CHECK(folder && !fstat(device.fifo, &fifo));
    for (struct dirent *entry; (entry = readdir(folder));) {
        int fd = atoi(entry->d_name);
        if (fd > 2 && fd != device.fifo && !fstat(fd, &file) && file.st_ino == fifo.st_ino &&
            file.st_dev == fifo.st_dev)
            found = fd;
    }
    closedir(folder);
    CHECK(found >= 0);
    return found;
}

/* The program closes it, and opens its own file under that number. */
static void closed(void) {
    struct stat mine;
    make_device("closed");
    start_device();
    CHECK(move(1) >= 6);
    int fd = find_descriptor(), file = memfd_create("mine", 0);
    CHECK(file >= 0 && dup2(file, fd) == fd);
    CHECK(move(10) >= 6, "not opened again");
    CHECK(!fstat(file, &mine) && mine.st_size == 0 && !fstat(fd, &mine));
    end_device();
}

/* The parent's queue is bound to the parent's memory: the child opens another one. */
static void forked(void) {
    make_device("parent");
    start_device();
    CHECK(move(1) >= 6);
    int before = atomic_load(&device.descriptors);
    pid_t child = fork();
    if (child == 0) {
        close(device.fifo);
        make_device("child");
        start_device();
        check_content(2);
        CHECK(move(10) >= 3);
        end_device();
        _exit(0);
    }
    expect_success(child);
    CHECK(atomic_load(&device.descriptors) == before);
    check_content(2);
    CHECK(move(20) >= 3);
    end_device();
}

static _Atomic bool is_over;

/* The first word of each OS page only grows. */
static void *grow(void *nothing) {
    for (uint64_t pass = 1; !atomic_load(&is_over); pass++)
        for (size_t at = 0; at < BYTES / 8; at += OS_PAGE / 8) {
            uint64_t found = __atomic_fetch_add(&region[at], 1, __ATOMIC_RELAXED);
            CHECK(found == pass - 1, "%zx: %lu in pass %lu", at, found, pass);
        }
    return nothing;
}

static void written(void) {
    pthread_t thread;
    make_device("written");
    start_device();
    memset(region, 0, BYTES);
    CHECK(!pthread_create(&thread, NULL, grow, NULL));
    for (int turn = 0; turn < 40; turn++) {
        atomic_store(&device.answer, turn % 4 == 3 ? FAULT_READING : COPY);
        if (turn % 3 == 0)
            CHECK(!tiercel_vregion_replicate(region, BYTES, turn % 2 ? 0 : ABSENT_NODE));
        CHECK(!tiercel_vregion_migrate(region, BYTES, turn % 2 ? 0 : ABSENT_NODE));
    }
    CHECK(atomic_load(&device.descriptors) >= 40);
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    end_device();
}

/* Each in a process of its own, which has no queue open yet. */
static void run_in_child(void (*part)(void)) {
    pid_t child = fork();
    if (child == 0) {
        alarm(HANG_S);
        make_region();
        part();
        _exit(0);
    }
    expect_success(child);
}

static void none(void) {
    no_device("off");
}
static void sink(void) {
    no_device("/dev/null");
}
static void missing(void) {
    no_device("/dev/dsa/wq900.900");
}

int main(void) {
    void (*parts[])(void) = {device_results, busy,   gone,   none,   sink,
                             missing,        closed, forked, written};
    setenv("TIERCEL_DSA", "off", 1);
    make_region();
    if (tiercel_vregion_replicate(region, BYTES, ABSENT_NODE) && errno == ENOTSUP) {
        puts("dsa: writes cannot be tracked here");
        return 0;
    }
    CHECK(mkdtemp(folder));
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        run_in_child(parts[i]);
    rmdir(folder);
    puts("dsa: a simulated device copied, faulted, failed, was busy, closed, forked: nothing lost");
    return 0;
}
