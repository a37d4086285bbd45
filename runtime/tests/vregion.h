/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vregion.h: helpers of several tests of vregions.
 * In: words, processes. Out: nothing, or a failed CHECK. Knows nothing of moves.
 */
#ifndef VREGION_H
#define VREGION_H

#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>

/* Words that depend on their index and a seed. */
static inline void fill_words(uint64_t *words, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes / 8; i++)
        words[i] = i * 0x9e3779b97f4a7c15ull + seed;
}

static inline void check_words(const uint64_t *words, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes / 8; i++)
        CHECK(words[i] == i * 0x9e3779b97f4a7c15ull + seed, "word %zu, seed %lu", i, seed);
}

/* Waits for a child, which must exit with status 0. */
static inline void expect_success(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%x", (unsigned)status);
}

/* Installs a seccomp filter that allows everything. */
static inline void install_filter(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

#endif
