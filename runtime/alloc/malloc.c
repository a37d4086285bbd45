/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * malloc.c: the malloc family, as glibc specifies it.
 * In: calls of the hosted program. Out: memory of the small layer or the run layer; other pointers
 * go to the allocator that made them.
 * Knows nothing of arenas, caches or records.
 *
 *   size < 4 KiB, alignment <= 1 KiB   small.c
 *   or one that would waste OS pages   small.c
 *   else                               heap_cache.c
 *   pointer in the range               small.c or heap_cache.c, by one compare
 *   pointer elsewhere                  heap_far.c, then mimalloc (no range), then glibc
 */
#include "heap.h"
#include <errno.h>
#include <gnu/libc-version.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Chosen, not measured: mimalloc over-allocates for alignments, an OS page wastes less above. */
#define SMALL_ALIGN_MAX 1024

/* The canonical frame address: a stack depth that needs no frame pointer. */
#define CALLER ((struct caller){__builtin_return_address(0), __builtin_dwarf_cfa()})

/* For objects that libc allocated itself, before this library was loaded. */
extern void __libc_free(void *p) __attribute__((weak));
extern void *__libc_realloc(void *p, size_t bytes) __attribute__((weak));

static void *fail(void) __attribute__((cold, noinline));
static void *fail(void) {
    errno = ENOMEM;
    return NULL;
}

static inline bool multiply(size_t count, size_t each, size_t *bytes) {
    return !__builtin_mul_overflow(count, each, bytes);
}

/* True of an object whose OS pages would be a quarter larger than it is, or more: it is a small
 * slot instead, as long as there are slots of its size. sqlite3, whose buffers are 4368 bytes, had
 * a heap of 35 MiB instead of 26. */
#define SLOT_MAX ((size_t)10240) /* MI_SMALL_MAX_OBJ_SIZE, which small.c checks */
static inline bool wastes_pages(size_t bytes) {
    size_t pages = PAGES_OF(bytes) << PAGE_SHIFT;
    return bytes <= SLOT_MAX && pages - bytes >= bytes / 4;
}
static inline bool fits_slots(size_t bytes) {
    return bytes < SMALL_LIMIT || wastes_pages(bytes);
}

static inline void *allocate(size_t bytes, bool zero, struct caller caller) {
    if (tcl_likely(bytes < SMALL_LIMIT) || wastes_pages(bytes))
        return tcl_small_alloc(bytes, zero, caller);
    if (tcl_unlikely(bytes > PTRDIFF_MAX))
        return fail();
    return tcl_run_alloc(bytes, 1, zero, caller);
}

static inline void *allocate_aligned(size_t bytes, size_t align, struct caller caller) {
    if (align <= 16) {
        void *p = tcl_small_fast(bytes);
        return tcl_likely(p != NULL) ? p : allocate(bytes, false, caller);
    }
    if (fits_slots(bytes) && align <= SMALL_ALIGN_MAX && !tcl_is_secure)
        return tcl_small_aligned(bytes, align, caller);
    if (bytes > PTRDIFF_MAX || align > PTRDIFF_MAX / 2 + 1)
        return fail();
    return tcl_run_alloc(bytes < SMALL_LIMIT ? SMALL_LIMIT : bytes, align, false, caller);
}

static void free_elsewhere(void *p) __attribute__((cold, noinline));
static void free_elsewhere(void *p) {
    if (p == NULL || tcl_far_free(p))
        return;
    if (tcl_small_owns(p))
        tcl_small_free_far(p);
    else if (__libc_free)
        __libc_free(p);
}

static size_t usable_elsewhere(const void *p) __attribute__((cold, noinline));
static size_t usable_elsewhere(const void *p) {
    size_t bytes = tcl_far_usable(p);
    if (bytes || p == NULL)
        return bytes;
    if (tcl_small_owns(p))
        return tcl_small_usable(p);
    /* A chunk of glibc has size and flags in the word before the object; a mapped one (flag 2) has
     * two words there. */
    size_t head = ((const size_t *)p)[-1];
    return (head & ~(size_t)7) - (head & 2 ? 2 : 1) * sizeof(size_t);
}

TCL_EXPORT void *malloc(size_t bytes) {
    void *p = tcl_small_fast(bytes);
    return tcl_likely(p != NULL) ? p : allocate(bytes, false, CALLER);
}

TCL_EXPORT void free(void *p) {
    if (tcl_likely(is_small(p)))
        tcl_small_free(p);
    else if (tcl_likely(is_run(p)))
        tcl_run_free(p);
    else
        free_elsewhere(p);
}

#ifndef free /* a fuzzer gives it another name */
extern __typeof(free) tcl_own_free
    __attribute__((alias("free"), visibility("hidden"), copy(free)));
#endif

TCL_EXPORT void cfree(void *p);
TCL_EXPORT void cfree(void *p) {
    free(p);
}

TCL_EXPORT void *calloc(size_t count, size_t each) {
    size_t bytes;
    if (tcl_unlikely(!multiply(count, each, &bytes)))
        return fail();
    void *p = tcl_small_zfast(bytes);
    return tcl_likely(p != NULL) ? p : allocate(bytes, true, CALLER);
}

TCL_EXPORT size_t malloc_usable_size(void *p) {
    return is_small(p) ? tcl_small_usable(p) : is_run(p) ? tcl_run_usable(p) : usable_elsewhere(p);
}

static void *resize(void *p, size_t bytes, struct caller caller) {
    if (p == NULL) {
        p = tcl_small_fast(bytes);
        return p ? p : allocate(bytes, false, caller);
    }
    if (bytes == 0) {
        free(p);
        return NULL;
    }
    if (tcl_unlikely(bytes > PTRDIFF_MAX))
        return fail();
    if (!is_small(p)) {
        if (is_run(p)) {
            if (!fits_slots(bytes))
                return tcl_run_realloc(p, bytes, caller);
        } else if (tcl_far_usable(p)) {
            if (bytes >= SMALL_LIMIT)
                return tcl_far_realloc(p, bytes);
        } else if (!tcl_small_owns(p)) {
            return __libc_realloc ? __libc_realloc(p, bytes) : fail();
        }
    }
    size_t old = malloc_usable_size(p);
    if (fits_slots(bytes) && bytes <= old && bytes >= old / 2)
        return p;
    void *to = tcl_small_fast(bytes);
    if (tcl_unlikely(to == NULL))
        to = allocate(bytes, false, caller);
    if (tcl_likely(to != NULL)) {
        memcpy(to, p, old < bytes ? old : bytes);
        free(p);
    }
    return to;
}

TCL_EXPORT void *realloc(void *p, size_t bytes) {
    return resize(p, bytes, CALLER);
}

TCL_EXPORT void *reallocarray(void *p, size_t count, size_t each) {
    size_t bytes;
    if (tcl_unlikely(!multiply(count, each, &bytes)))
        return fail();
    return resize(p, bytes, CALLER);
}

/* ---- Aligned --------------------------------------------------------------------------------- */

static inline bool power_of_two(size_t n) {
    return n != 0 && (n & (n - 1)) == 0;
}

TCL_EXPORT int posix_memalign(void **to, size_t align, size_t bytes) {
    if (!power_of_two(align) || align % sizeof(void *) != 0)
        return EINVAL;
    int saved = errno;
    void *p = allocate_aligned(bytes, align, CALLER);
    errno = saved;
    if (!p)
        return ENOMEM;
    *to = p;
    return 0;
}

static void *fail_as_invalid(void) {
    errno = EINVAL;
    return NULL;
}

/* glibc rounds a bad alignment up to the next power of two. */
static inline void *allocate_rounded(size_t align, size_t bytes, struct caller caller) {
    if (align > SIZE_MAX / 2 + 1)
        return fail_as_invalid();
    if (!power_of_two(align))
        align = align < 16 ? 16 : (size_t)1 << (64 - __builtin_clzll(align));
    return allocate_aligned(bytes, align, caller);
}

/* Since 2.38 glibc refuses a bad alignment here; before, it was memalign. */
static bool is_aligned_alloc_strict(void) {
    const char *version = gnu_get_libc_version(); /* 2.MINOR */
    return strtol(version + 2, NULL, 10) >= 38;
}

TCL_EXPORT void *aligned_alloc(size_t align, size_t bytes) {
    if (tcl_unlikely(!power_of_two(align)) && is_aligned_alloc_strict())
        return fail_as_invalid();
    return allocate_rounded(align, bytes, CALLER);
}

TCL_EXPORT void *memalign(size_t align, size_t bytes) {
    return allocate_rounded(align, bytes, CALLER);
}

TCL_EXPORT void *valloc(size_t bytes) {
    return allocate_aligned(bytes, PAGE, CALLER);
}

TCL_EXPORT void *pvalloc(size_t bytes) {
    if (bytes > PTRDIFF_MAX)
        return fail();
    bytes = bytes ? PAGES_OF(bytes) << PAGE_SHIFT : PAGE;
    return allocate_aligned(bytes, PAGE, CALLER);
}

bool tcl_heap_has(const void *p) {
    return is_small(p) || is_run(p) || tcl_small_owns(p) || tcl_far_usable(p);
}

void *tcl_allocate(size_t bytes, size_t align, struct caller caller) {
    return allocate_aligned(bytes, align, caller);
}

void *tcl_allocate_zeroed(size_t count, size_t each, struct caller caller) {
    size_t bytes;
    if (!multiply(count, each, &bytes))
        return fail();
    void *p = tcl_small_zfast(bytes);
    return p ? p : allocate(bytes, true, caller);
}

void *tcl_resize(void *p, size_t bytes, struct caller caller) {
    return resize(p, bytes, caller);
}

bool tcl_is_secure;

void tcl_secure_start(void) {
    const char *value = secure_getenv(TCL_SECURE_ENV);
    if (!value || !*value || strcmp(value, "0") == 0)
        return;
    tcl_small_secure();
    tcl_is_secure = true;
}

void tcl_abort_with(const char *text, size_t bytes) {
    syscall(SYS_write, STDERR_FILENO, text, bytes);
    abort();
}
