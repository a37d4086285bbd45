/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * memkind.c: the part of memkind's interface by which OpenMP runtimes allocate in spaces.
 * In: their calls. Out: calls of libtiercel.so whose context is a space. Knows nothing of what a
 * space is.
 *
 * LLVM's libomp and GNU's libgomp (from GCC 13 on) open libmemkind by name and look these up; they
 * do without those that are missing. openmp.c loads this library before, under both names. Nothing
 * here is part of libtiercel.so: a program that links the real memkind must find the real one.
 *
 *   omp_high_bw_mem_space    MEMKIND_HBW_PREFERRED, ..._INTERLEAVE        high bandwidth
 *   omp_large_cap_mem_space  MEMKIND_DAX_KMEM_ALL, MEMKIND_DAX_KMEM       large capacity
 *   all others               MEMKIND_DEFAULT, MEMKIND_INTERLEAVE          any
 */
#define TIERCEL_LINKED
#include "../../include/tiercel.h"

#define EXPORT __attribute__((visibility("default")))

/* A kind is an opaque pointer: the space itself. */
#define KIND(space) ((void *)(uintptr_t)(space))

EXPORT void *MEMKIND_DEFAULT = KIND(TIERCEL_ANY_SPACE);
EXPORT void *MEMKIND_INTERLEAVE = KIND(TIERCEL_ANY_SPACE);
EXPORT void *MEMKIND_HBW = KIND(TIERCEL_HIGH_BANDWIDTH);
EXPORT void *MEMKIND_HBW_PREFERRED = KIND(TIERCEL_HIGH_BANDWIDTH);
EXPORT void *MEMKIND_HBW_INTERLEAVE = KIND(TIERCEL_HIGH_BANDWIDTH);
EXPORT void *MEMKIND_DAX_KMEM = KIND(TIERCEL_LARGE_CAPACITY);
EXPORT void *MEMKIND_DAX_KMEM_ALL = KIND(TIERCEL_LARGE_CAPACITY);
EXPORT void *MEMKIND_DAX_KMEM_PREFERRED = KIND(TIERCEL_LARGE_CAPACITY);

/* 0: available. A space always is; the daemon resolves it on each machine. */
EXPORT int memkind_check_available(void *kind) {
    (void)kind;
    return 0;
}

EXPORT void *memkind_malloc(void *kind, size_t bytes) {
    return tiercel_space_malloc(kind, bytes);
}

EXPORT void *memkind_calloc(void *kind, size_t count, size_t each) {
    return tiercel_space_calloc(kind, count, each);
}

EXPORT void *memkind_realloc(void *kind, void *memory, size_t bytes) {
    return tiercel_space_realloc(kind, memory, bytes);
}

EXPORT void memkind_free(void *kind, void *memory) {
    tiercel_space_free(kind, memory, 0);
}
