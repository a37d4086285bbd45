/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * image.c: memory that no call of the program mapped: static data of modules, and stacks.
 * In: the loader's list of modules, the stack pointer. Out: objects of map.c with a site for each
 * segment, one for the main stack, one for the stacks of all threads. Knows nothing of symbols,
 * which a session does not carry: the daemon has them read from the module's file.
 *
 *   found[]     what the loader has, by dl_iterate_phdr  |libm .data|app .data .bss|libz .rodata|
 *   reported[]  what it had before                       |libm .data|app .data .bss|libq .data|
 *               reported now                             libz .rodata born, libq .data died
 *
 * The loader has no call that is safe to interpose for dlopen (it looks at who calls it), so the
 * list is compared where a program is slow anyway: at an attach, a new site, a mapping, and after
 * dlclose. The loader counts its changes: nothing is read while that count stays the same.
 *
 * Stacks of threads are reported when a thread writes its first record, as deep as it is then; the
 * main stack as large as the kernel makes it at first, and deeper where it is found deeper.
 */
#include "session.h"
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Segments of all modules: 2 tables of 48 KiB, of which a program touches what it has. Chosen, not
 * measured: large programs load some hundreds of modules, with one or two segments each. */
#define SEGMENTS_MAX 2048
/* Data that is only read is an object from here on: smaller constants stay in the CPUs' caches.
 * Chosen, not measured. */
#define CONSTANT_BYTES_MIN (256u << 10)
/* What a main stack has at first: setup_arg_pages of the kernel's fs/exec.c. */
#define MAIN_STACK_BYTES (128u << 10)
/* Farther from the top is no stack: a coroutine's, or a signal's. Chosen, not measured: several
 * times what limits of stacks are. */
#define STACK_BYTES_MAX (1ull << 30)

extern void *__libc_stack_end __attribute__((weak));

struct segment {
    uintptr_t start, end;
    uint32_t site; /* 0: not reported, or of the runtime, or there was no room for one */
    bool is_constant, is_reported;
};

/* All of this under image_lock. */
static struct segment found[SEGMENTS_MAX], reported[SEGMENTS_MAX];
static size_t found_count, reported_count;
static bool is_collected, is_unreported;
static unsigned long long loads, unloads; /* of the loader, when found[] was made */
static uintptr_t main_low;                /* of the main stack; 0: not reported */
static bool fork_holds_image;
static bool
    is_lock_doubtful; /* another thread may have had the loader's lock when we were forked */

static _Thread_local uintptr_t thread_low, thread_end;

static uintptr_t page_down(uintptr_t addr) {
    return addr & -(uintptr_t)TCL_PAGE;
}

static uintptr_t page_up(uintptr_t addr) {
    return page_down(addr + TCL_PAGE - 1);
}

static void count_overflow(void) {
    if (tcl_attached())
        __atomic_fetch_add(&tcl_header()->map_overflows, 1, __ATOMIC_RELAXED);
}

/* ---- Segments -------------------------------------------------------------------------------- */

static void collect_segments(const struct dl_phdr_info *module) {
    for (unsigned i = 0; i < module->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &module->dlpi_phdr[i];
        bool is_constant = !(header->p_flags & PF_W);
        if (header->p_type != PT_LOAD || !header->p_memsz ||
            (is_constant && (header->p_flags & PF_X || header->p_memsz < CONSTANT_BYTES_MIN)))
            continue;
        if (found_count == SEGMENTS_MAX) {
            count_overflow();
            return;
        }
        uintptr_t start = module->dlpi_addr + header->p_vaddr;
        found[found_count++] = (struct segment){page_down(start), page_up(start + header->p_memsz),
                                                0, is_constant, false};
    }
}

uint64_t tcl_image_program_bytes(void) {
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    uint64_t bytes = 0;
    for (unsigned long i = 0; header && i < getauxval(AT_PHNUM); i++)
        if (header[i].p_type == PT_LOAD && header[i].p_flags & PF_W)
            bytes += header[i].p_memsz;
    return bytes;
}

/* Called for each module with the loader's lock held; not 0 ends that. */
static int see_module(struct dl_phdr_info *module, size_t bytes, void *context) {
    bool *is_first = context;
    if (*is_first) {
        *is_first = false;
        bool is_counted = bytes > offsetof(struct dl_phdr_info, dlpi_subs);
        if (is_counted && is_collected && loads == module->dlpi_adds &&
            unloads == module->dlpi_subs)
            return 1;
        loads = module->dlpi_adds;
        unloads = module->dlpi_subs;
        is_collected = is_unreported = true;
        found_count = 0;
    }
    collect_segments(module);
    return 0;
}

static void collect(void) {
    bool is_first = true;
    if (!is_lock_doubtful)
        dl_iterate_phdr(see_module, &is_first);
}

/* Its number in a table; mostly it is where it was before. */
static size_t number_in(const struct segment *table, size_t count, const struct segment *one,
                        size_t guess) {
    if (guess < count && table[guess].start == one->start && table[guess].end == one->end)
        return guess;
    for (size_t i = 0; i < count; i++)
        if (table[i].start == one->start && table[i].end == one->end)
            return i;
    return count;
}

/* The loader lists a module before it can find it by an address, and calls us meanwhile: such a
 * segment is reported the next time. */
static void report(struct segment *one) {
    enum tcl_site_kind kind = one->is_constant ? TCL_SITE_CONSTANT : TCL_SITE_STATIC;
    one->is_reported = tcl_site_of_segment(one->start, kind, &one->site);
    is_unreported |= !one->is_reported;
    if (one->is_reported && one->site)
        tcl_map_image(one->start, one->end - one->start, one->site);
}

static void report_segments(void) {
    is_unreported = false;
    for (size_t i = 0; i < reported_count; i++)
        if (reported[i].site && number_in(found, found_count, &reported[i], i) == found_count)
            tcl_map_image_gone(reported[i].start, reported[i].end - reported[i].start);
    for (size_t i = 0; i < found_count; i++) {
        size_t old = number_in(reported, reported_count, &found[i], i);
        if (old < reported_count)
            found[i] = reported[old];
        if (!found[i].is_reported)
            report(&found[i]);
    }
    memcpy(reported, found, found_count * sizeof(*found));
    reported_count = found_count;
}

/* ---- Stacks ---------------------------------------------------------------------------------- */

/* The environment and the program's name lie above the first frame. */
static uintptr_t main_stack_end(void) {
    const char *name = (const char *)getauxval(AT_EXECFN);
    uintptr_t first = &__libc_stack_end ? (uintptr_t)__libc_stack_end : 0;
    return name && (uintptr_t)name > first ? page_up((uintptr_t)name + strlen(name) + 1)
                                           : page_up(first);
}

static void report_main_stack(void) {
    uintptr_t first = &__libc_stack_end ? (uintptr_t)__libc_stack_end : 0;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0), low = main_low;
    if (!first)
        return;
    if (!low)
        low = page_down(first) - MAIN_STACK_BYTES;
    if (here < low && low - here < STACK_BYTES_MAX && syscall(SYS_gettid) == syscall(SYS_getpid) &&
        first - here < STACK_BYTES_MAX)
        low = page_down(here);
    if (low == main_low)
        return;
    uintptr_t end = main_low ? main_low : main_stack_end();
    main_low = low;
    tcl_map_image(low, end - low, tcl_site_of_kind(0, TCL_SITE_MAIN_STACK));
}

void tcl_image_thread(void) {
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    uintptr_t end = (uintptr_t)__builtin_thread_pointer();
    if (end < here || end - here > STACK_BYTES_MAX || thread_end || !tcl_attached() ||
        syscall(SYS_gettid) == syscall(SYS_getpid))
        return;
    int saved = errno;
    thread_low = page_down(here);
    thread_end = page_up(end + 1);
    tcl_map_image(thread_low, thread_end - thread_low, tcl_site_of_kind(0, TCL_SITE_STACK));
    errno = saved;
}

void tcl_image_thread_gone(void) {
    if (thread_end)
        tcl_map_image_gone(thread_low, thread_end - thread_low);
    thread_end = 0;
}

/* ---- When ------------------------------------------------------------------------------------ */

void tcl_image_scan(void) {
    int saved = errno;
    if (tcl_lock(&tcl_process->image_lock)) {
        collect();
        if (is_unreported && tcl_attached())
            report_segments();
        if (tcl_attached())
            report_main_stack();
        tcl_unlock(&tcl_process->image_lock);
    }
    errno = saved;
}

void tcl_image_check(void) {
    if (tcl_attached())
        tcl_image_scan();
}

/* Other code may be loaded at the addresses of the code that is unloaded. */
TCL_EXPORT int dlclose(void *handle) {
    static int (*_Atomic next)(void *);
    int (*real)(void *) = atomic_load_explicit(&next, memory_order_relaxed);
    if (!real) {
        real = (int (*)(void *))dlsym(RTLD_NEXT, "dlclose");
        if (!real)
            return -1;
        atomic_store_explicit(&next, real, memory_order_relaxed);
    }
    int result = real(handle);
    if (tcl_tracking()) {
        tcl_site_forget();
        tcl_image_check();
    }
    return result;
}

/* ---- Fork ------------------------------------------------------------------------------------ */

/* The child may not wait for the loader's lock, which another thread may have: it finds the list.
 */
void tcl_image_before_fork(void) {
    fork_holds_image = tcl_tracking() && tcl_lock(&tcl_process->image_lock);
    if (fork_holds_image && !is_collected)
        collect();
}

void tcl_image_after_fork_parent(void) {
    if (fork_holds_image)
        tcl_unlock(&tcl_process->image_lock);
}

/* Its stack is that of the thread which forked, and is the first of this process. */
void tcl_image_after_fork_child(void) {
    is_lock_doubtful |= !tcl_forks_alone;
}
