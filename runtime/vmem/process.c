/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * process.c: small files of /proc and /sys, and threads, for the other files of vmem/.
 * In: paths, functions. Out: text, the number of threads, threads of the runtime. Knows nothing of
 * memory. Only vmem_start_thread allocates.
 */
#include "region.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STAT_BYTES 128u /* number, name (16 characters at most) and state are in the first 40 */

static _Atomic int own_threads;
static _Atomic bool had_threads; /* libc then takes the process for one with threads for ever */

bool vmem_read_text(const char *path, char *text, size_t size) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    long got = fd < 0 ? -1 : syscall(SYS_read, fd, text, size - 1);
    if (fd >= 0)
        syscall(SYS_close, fd);
    text[got > 0 ? got : 0] = 0;
    return got > 0;
}

int vmem_threads(void) {
    struct stat tasks; /* the folder has a link for each thread, and two more */
    bool is_seen = !syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &tasks, 0);
    return is_seen ? (int)tasks.st_nlink - 2 : 0;
}

bool tcl_vmem_has_only_own_threads(void) {
    return atomic_load(&had_threads) && !tcl_is_filtered() &&
           vmem_threads() == 1 + atomic_load(&own_threads);
}

/* The first thread of a process stays listed when it has ended. */
bool vmem_has_no_program_thread(void) {
    char stat[STAT_BYTES];
    if (!tcl_vmem_has_only_own_threads() || !vmem_read_text("/proc/self/stat", stat, sizeof(stat)))
        return false;
    const char *name_end = strrchr(stat, ')'); /* the name may have any characters */
    return name_end && name_end[1] == ' ' && name_end[2] == 'Z';
}

void vmem_end_thread(void) {
    atomic_fetch_sub(&own_threads, 1);
}

void vmem_forget_threads(void) {
    atomic_store(&own_threads, 0);
}

int vmem_start_joinable(pthread_t *thread, void *(*work)(void *), void *argument) {
    sigset_t all, before;
    atomic_store(&had_threads, true);
    atomic_fetch_add(&own_threads, 1);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, work, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        vmem_end_thread();
    return error;
}

int vmem_start_thread(void *(*work)(void *), void *argument) {
    pthread_t thread;
    int error = vmem_start_joinable(&thread, work, argument);
    if (!error)
        pthread_detach(thread);
    return error;
}
