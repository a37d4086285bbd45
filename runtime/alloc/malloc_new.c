/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * malloc_new.c: C++ operator new and delete, in C.
 * In: calls of C++ programs. Out: memory of malloc.c, with the site of the caller itself.
 * Knows nothing of exceptions.
 *
 * libstdc++'s own operators would call our malloc, too, but then all C++ objects would have the
 * same return address, and each call would cost twice. Calling the new handler and throwing
 * std::bad_alloc need a C++ runtime: when memory is short, the next operator in the library order
 * is called, libstdc++'s, which tries once more and then does both.
 */
#include "heap.h"
#include <dlfcn.h>
#include <malloc.h>
#include <stdlib.h>

typedef void *plain_new(size_t);
typedef void *aligned_new(size_t, size_t);

static void *next_plain(const char *name, size_t bytes) __attribute__((cold, noinline));
static void *next_plain(const char *name, size_t bytes) {
    plain_new *next = (plain_new *)dlsym(RTLD_NEXT, name);
    if (!next)
        abort();
    return next(bytes);
}

static void *next_aligned(const char *name, size_t bytes, size_t align)
    __attribute__((cold, noinline));
static void *next_aligned(const char *name, size_t bytes, size_t align) {
    aligned_new *next = (aligned_new *)dlsym(RTLD_NEXT, name);
    if (!next)
        abort();
    return next(bytes, align);
}

#define CALLER ((struct caller){__builtin_return_address(0), __builtin_dwarf_cfa()})

#define PLAIN_NEW(name)                                                                            \
    TCL_EXPORT void *name(size_t bytes);                                                           \
    TCL_EXPORT void *name(size_t bytes) {                                                          \
        void *p = tcl_small_fast(bytes);                                                           \
        if (tcl_likely(p != NULL))                                                                 \
            return p;                                                                              \
        p = tcl_allocate(bytes, 16, CALLER);                                                       \
        return tcl_likely(p != NULL) ? p : next_plain(#name, bytes);                               \
    }
#define ALIGNED_NEW(name)                                                                          \
    TCL_EXPORT void *name(size_t bytes, size_t align);                                             \
    TCL_EXPORT void *name(size_t bytes, size_t align) {                                            \
        void *p = tcl_allocate(bytes, align, CALLER);                                              \
        return tcl_likely(p != NULL) ? p : next_aligned(#name, bytes, align);                      \
    }
/* The nothrow forms call the new handler as well, so they use libstdc++ in the same way. */
typedef void *plain_nothrow(size_t, const void *);
typedef void *aligned_nothrow(size_t, size_t, const void *);
#define PLAIN_NOTHROW(name)                                                                        \
    TCL_EXPORT void *name(size_t bytes, const void *tag);                                          \
    TCL_EXPORT void *name(size_t bytes, const void *tag) {                                         \
        void *p = tcl_allocate(bytes, 16, CALLER);                                                 \
        plain_nothrow *next;                                                                       \
        if (tcl_likely(p != NULL) || !(next = (plain_nothrow *)dlsym(RTLD_NEXT, #name)))           \
            return p;                                                                              \
        return next(bytes, tag);                                                                   \
    }
#define ALIGNED_NOTHROW(name)                                                                      \
    TCL_EXPORT void *name(size_t bytes, size_t align, const void *tag);                            \
    TCL_EXPORT void *name(size_t bytes, size_t align, const void *tag) {                           \
        void *p = tcl_allocate(bytes, align, CALLER);                                              \
        aligned_nothrow *next;                                                                     \
        if (tcl_likely(p != NULL) || !(next = (aligned_nothrow *)dlsym(RTLD_NEXT, #name)))         \
            return p;                                                                              \
        return next(bytes, align, tag);                                                            \
    }

PLAIN_NEW(_Znwm)
PLAIN_NEW(_Znam)
ALIGNED_NEW(_ZnwmSt11align_val_t)
ALIGNED_NEW(_ZnamSt11align_val_t)
PLAIN_NOTHROW(_ZnwmRKSt9nothrow_t)
PLAIN_NOTHROW(_ZnamRKSt9nothrow_t)
ALIGNED_NOTHROW(_ZnwmSt11align_val_tRKSt9nothrow_t)
ALIGNED_NOTHROW(_ZnamSt11align_val_tRKSt9nothrow_t)

/* The sizes, alignments and tags of the other forms are not needed. */
#define DELETE(name)                                                                               \
    TCL_EXPORT void name(void *p);                                                                 \
    TCL_EXPORT void name(void *p) {                                                                \
        free(p);                                                                                   \
    }

DELETE(_ZdlPv)
extern __typeof(_ZdlPv) tcl_own_delete __attribute__((alias("_ZdlPv"), visibility("hidden")));
DELETE(_ZdaPv)
DELETE(_ZdlPvm)
DELETE(_ZdaPvm)
DELETE(_ZdlPvRKSt9nothrow_t)
DELETE(_ZdaPvRKSt9nothrow_t)
DELETE(_ZdlPvSt11align_val_t)
DELETE(_ZdaPvSt11align_val_t)
DELETE(_ZdlPvmSt11align_val_t)
DELETE(_ZdaPvmSt11align_val_t)
DELETE(_ZdlPvSt11align_val_tRKSt9nothrow_t)
DELETE(_ZdaPvSt11align_val_tRKSt9nothrow_t)
