/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * probe.c: libtiercel_probe.a, which `tiercel cc` links into each executable and shared library.
 * In: accesses to sampled lines, by the code that compiler/pass wrote. Out: calls of the runtime's
 * hooks. Knows nothing of caches; without the runtime nothing is sampled and nothing is called.
 *
 * By clang, which knows preserve_most: its callers keep what is in general registers.
 */
#include "../../include/tiercel_probe.h"
#include <stddef.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define FROM_CODE __attribute__((visibility("hidden"), preserve_most))

/* Where there is no runtime, these are 0. */
__attribute__((weak)) void tiercel_probe_join(const struct tiercel_probe_module *module);
__attribute__((weak)) void tiercel_probe_leave(const struct tiercel_probe_module *module);

HIDDEN uint32_t tiercel_probe_limit;
static void (*access_hook)(uintptr_t addr, uint32_t what, uintptr_t from);
static void (*range_hook)(uintptr_t addr, uintptr_t bytes, uint32_t what, uintptr_t from);

static const struct tiercel_probe_module module = {.version = TIERCEL_PROBE_VERSION,
                                                   .limit = &tiercel_probe_limit,
                                                   .access = &access_hook,
                                                   .range = &range_hook};

FROM_CODE void tiercel_probe_access(uintptr_t addr, uint32_t what) {
    if (access_hook)
        access_hook(addr, what, (uintptr_t)__builtin_return_address(0));
}

FROM_CODE void tiercel_probe_range(uintptr_t addr, uintptr_t bytes, uint32_t what) {
    if (range_hook)
        range_hook(addr, bytes, what, (uintptr_t)__builtin_return_address(0));
}

__attribute__((constructor)) static void join(void) {
    if (tiercel_probe_join)
        tiercel_probe_join(&module);
}

__attribute__((destructor)) static void leave(void) {
    if (tiercel_probe_leave)
        tiercel_probe_leave(&module);
}
