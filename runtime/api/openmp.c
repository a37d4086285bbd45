/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * openmp.c: connects OpenMP's memory spaces to the runtime.
 * In: a hosted program that has an OpenMP runtime. Out: memkind/ beside libtiercel.so, loaded.
 * Knows nothing of spaces.
 *
 * OpenMP runtimes open libmemkind by its bare name when a program first uses a space. The loader
 * returns a library that is already loaded under that name, so ours is loaded first, but only where
 * there is an OpenMP runtime and memkind itself is not loaded, which the program would use. No
 * search path changes, so that the program finds all other libraries as it would without us, and
 * the symbols are local, so that they replace none.
 */
#include "../track/session.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* The names that GNU's and LLVM's runtime open. */
static const char *const names[] = {"libmemkind.so.0", "libmemkind.so"};

static void load_memkind(void) {
    Dl_info ours;
    char path[PATH_MAX];
    if (!dlsym(RTLD_DEFAULT, "omp_init_allocator") ||
        !dladdr((void *)&tcl_openmp_start, &ours) || !ours.dli_fname)
        return;
    const char *slash = strrchr(ours.dli_fname, '/');
    int folder = slash ? (int)(slash - ours.dli_fname) : 0;
    for (size_t k = 0; slash && k < sizeof(names) / sizeof(*names); k++) {
        void *theirs = dlopen(names[k], RTLD_LAZY | RTLD_NOLOAD);
        if (theirs) {
            dlclose(theirs);
            return;
        }
        int length =
            snprintf(path, sizeof(path), "%.*s/memkind/%s", folder, ours.dli_fname, names[k]);
        if (length > 0 && (size_t)length < sizeof(path))
            dlopen(path,
                   RTLD_NOW | RTLD_LOCAL); /* never closed; without it spaces have no effect */
    }
}

void tcl_openmp_start(void) {
    if (!tcl_tracking())
        return;
    load_memkind();
    dlerror(); /* what was not found here is no answer to the program's next call */
}
