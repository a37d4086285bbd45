/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * memlock.c: mlockall and mlock, interposed, so that they lock what the program has.
 * In: the program's calls, the list of its mappings. Out: the same memory locked and resident as
 * without the runtime. Knows nothing of sites or records.
 *
 * The kernel's mlockall would lock and fill all that the runtime has reserved: a terabyte of
 * addresses, and gigabytes of tables. So the mappings are locked one by one: the program's own as
 * it asked; the heap's on their first touch, with live objects filled at once, because the program
 * may rely on it that no access faults. What has no access rights is left out, and so are the
 * session and the tables of sites: the kernel may swap them.
 *
 * MCL_FUTURE is the kernel's for new mappings. The heap opens memory that it has reserved before,
 * which is no new mapping for the kernel: it is locked here, again on first touch.
 */
#include "session.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* Bytes of /proc/self/maps read at once: some 40 mappings. It lies on the stack. */
#define MAPS_BYTES 4096

/* The list ends with a page of the kernel's (vsyscall), which no call of the program concerns. */
#define KERNEL_START ((uintptr_t)1 << 63)

bool tcl_locks_opened;

/* One line of /proc/self/maps, as far as it has been read: "START-END rwxp ...\n". */
struct mapping {
    uintptr_t start, end;
    enum { IN_START, IN_END, IN_RIGHTS, IN_REST } field;
    bool is_accessible;
};

static int lock_on_fault(uintptr_t start, size_t bytes) {
    return (int)syscall(SYS_mlock2, start, bytes, MLOCK_ONFAULT);
}

void tcl_lock_opened(uintptr_t start, size_t bytes) {
    int saved = errno;
    lock_on_fault(start, bytes); /* beyond the limit it stays unlocked: malloc is not to fail */
    errno = saved;
}

static bool is_heap(uintptr_t start, uintptr_t end) {
    uintptr_t base;
    size_t pages;
    tcl_range(&base, &pages);
    return pages && start < base + pages * TCL_PAGE && base < end;
}

static bool is_table(uintptr_t start, uintptr_t end) {
    return tcl_session_overlaps(start, end) || tcl_offer_overlaps(start, end) ||
           tcl_site_tables_overlap(start, end);
}

/* Locks one mapping. Only limits and rights are errors, as in the kernel: not memory that cannot be
 * filled, such as that of a file beyond its end. */
static bool lock_mapping(const struct mapping *mapping) {
    size_t bytes = mapping->end - mapping->start;
    if (!mapping->is_accessible || mapping->start >= KERNEL_START ||
        is_table(mapping->start, mapping->end))
        return true;
    bool is_locked = lock_on_fault(mapping->start, bytes) == 0;
    if (is_locked && !is_heap(mapping->start, mapping->end))
        syscall(SYS_mlock, mapping->start, bytes);
    return is_locked;
}

/* Takes one character of the list. True at the end of a line. */
static bool take(struct mapping *mapping, char c) {
    unsigned digit = c >= 'a' ? (unsigned)(c - 'a') + 10 : (unsigned)(c - '0');
    if (mapping->field == IN_START && c == '-')
        mapping->field = IN_END;
    else if (mapping->field == IN_START)
        mapping->start = mapping->start << 4 | digit;
    else if (mapping->field == IN_END && c == ' ')
        mapping->field = IN_RIGHTS;
    else if (mapping->field == IN_END)
        mapping->end = mapping->end << 4 | digit;
    else if (mapping->field == IN_RIGHTS && c == ' ')
        mapping->field = IN_REST;
    else if (mapping->field == IN_RIGHTS)
        mapping->is_accessible |= c == 'r' || c == 'w' || c == 'x';
    return c == '\n';
}

/* Locks every mapping of the list that `fd` reads. */
static bool lock_listed(int fd) {
    char text[MAPS_BYTES];
    struct mapping mapping = {0};
    for (;;) {
        long got = syscall(SYS_read, fd, text, sizeof(text));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got == 0;
        for (long i = 0; i < got; i++) {
            if (!take(&mapping, text[i]))
                continue;
            if (!lock_mapping(&mapping))
                return false;
            mapping = (struct mapping){0};
        }
    }
}

static void fill_object(const struct tcl_use *use, void *context) {
    (void)context;
    if (syscall(SYS_madvise, use->addr, use->bytes, MADV_POPULATE_WRITE) != 0 && errno == EINVAL)
        syscall(SYS_mlock, use->addr, use->bytes);
}

/* 0, or -1 with the kernel's errno. */
static int lock_current(void) {
    int saved = errno;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return (int)syscall(SYS_mlockall, MCL_CURRENT); /* no /proc: all there is, at any price */
    bool is_locked = lock_listed(fd);
    int error = errno;
    syscall(SYS_close, fd);
    errno = error;
    if (!is_locked)
        return -1;
    tcl_heap_each(fill_object, NULL);
    errno = saved;
    return 0;
}

/* Opened memory of the heap is no new mapping, now or later. */
static void lock_heap_from_now_on(void) {
    uintptr_t base;
    size_t pages;
    tcl_range(&base, &pages);
    __atomic_store_n(&tcl_locks_opened, true, __ATOMIC_RELEASE);
    if (pages)
        tcl_heap_each_opened(tcl_lock_opened);
}

TCL_EXPORT int mlockall(int flags) {
    bool is_plain = !(flags & ~(MCL_CURRENT | MCL_FUTURE));
    if (is_plain && flags & MCL_CURRENT && lock_current() != 0)
        return -1;
    int rest = is_plain && flags != 0 ? flags & ~MCL_CURRENT : flags;
    int result = rest || !is_plain || flags == 0 ? (int)syscall(SYS_mlockall, rest) : 0;
    if (result == 0 && flags & MCL_FUTURE)
        lock_heap_from_now_on();
    return result;
}

TCL_EXPORT int munlockall(void) {
    __atomic_store_n(&tcl_locks_opened, false, __ATOMIC_RELEASE);
    return (int)syscall(SYS_munlockall);
}

/* A program that locks all mappings it finds in /proc meets the runtime's tables. */
TCL_EXPORT int mlock(const void *addr, size_t bytes) {
    if (tcl_unlikely(is_table((uintptr_t)addr, (uintptr_t)addr + bytes)))
        return 0;
    return (int)syscall(SYS_mlock, addr, bytes);
}

TCL_EXPORT int mlock2(const void *addr, size_t bytes, unsigned flags) {
    if (tcl_unlikely(is_table((uintptr_t)addr, (uintptr_t)addr + bytes)))
        return 0;
    return (int)syscall(SYS_mlock2, addr, bytes, flags);
}
