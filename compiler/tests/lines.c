/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * lines.c: the probe reports each line that patterns.c accesses, and no other.
 * In: nothing. Out: a line for each pattern that is wrong; exit status 1 then. It takes the place
 * of the runtime. With an argument, which is for optimised code, sequential patterns may cost one
 * call a line and no more, and each has the pattern that it shows.
 */
#include "../../include/tiercel_probe.h"
#include "patterns.h"
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define BYTES (1u << 20)
#define LINE 64
#define LINES (BYTES / LINE)

static _Alignas(4096) char memory[2 * BYTES];
static bool seen[2 * LINES], dirty[2 * LINES], wanted[2 * LINES], wanted_dirty[2 * LINES];
static unsigned long calls;
static unsigned shown; /* patterns: a bit each */
static bool is_on, is_strict, has_failed;

static void note_lines(bool *touched, bool *written, uintptr_t from, uintptr_t bytes, bool writes) {
    uintptr_t base = (uintptr_t)memory;
    if (!bytes || from < base || from + bytes > base + sizeof(memory))
        return;
    for (uintptr_t line = (from - base) / LINE; line <= (from + bytes - 1 - base) / LINE; line++) {
        touched[line] = true;
        written[line] |= writes;
    }
}

static void range(uintptr_t addr, uintptr_t bytes, uint32_t what, uintptr_t from) {
    (void)from;
    if (is_on)
        note_lines(seen, dirty, addr, bytes, what & TIERCEL_PROBE_DIRTIES);
}

static void access_(uintptr_t addr, uint32_t what, uintptr_t from) {
    calls += is_on;
    shown |= (unsigned)is_on << (what >> TIERCEL_PROBE_PATTERN_SHIFT & 3);
    range(addr, what >> TIERCEL_PROBE_SPAN_SHIFT, what, from);
}

void tiercel_probe_join(const struct tiercel_probe_module *module) {
    *module->access = access_;
    *module->range = range;
    *module->limit = UINT32_MAX;
}

void tiercel_probe_leave(const struct tiercel_probe_module *module) {
    *module->limit = 0;
}

/* The pattern that follows accesses these. */
static void want(const void *from, size_t bytes, bool writes) {
    note_lines(wanted, wanted_dirty, (uintptr_t)from, bytes, writes);
}

static void begin(void) {
    memset(seen, 0, sizeof(seen));
    memset(dirty, 0, sizeof(dirty));
    calls = shown = 0;
    is_on = true;
}

static void end(const char *name, unsigned long calls_max) {
    is_on = false;
    for (size_t line = 0; line < 2 * LINES; line++) {
        if (seen[line] == wanted[line] && dirty[line] == wanted_dirty[line])
            continue;
        printf("%s: line %zu: accessed %d, reported %d; written %d, reported %d\n", name, line,
               wanted[line], seen[line], wanted_dirty[line], dirty[line]);
        has_failed = true;
        break;
    }
    if (is_strict && calls_max && calls > calls_max) {
        printf("%s: %lu calls, more than %lu\n", name, calls, calls_max);
        has_failed = true;
    }
    memset(wanted, 0, sizeof(wanted));
    memset(wanted_dirty, 0, sizeof(wanted_dirty));
}

/* Runs `call`, whose accesses were named by `want`. `calls_max` 0: any number. */
#define RUN(calls_max, call) (begin(), (void)(call), end(#call, calls_max))

/* What the last pattern showed, if it accessed anything at all. */
static void shows(const char *name, unsigned patterns) {
    if (is_strict && shown && shown != patterns) {
        printf("%s: patterns %x, wanted %x\n", name, shown, patterns);
        has_failed = true;
    }
}
#define ONE(name) (1u << TIERCEL_PROBE_##name)

/* One call for each line, and some: before the loop, and after it for what vectors leave over. */
#define EACH_LINE(bytes) ((bytes) / LINE + 16)

static void sequential(double *a, size_t n) {
    want(a, n * 8, false);
    RUN(EACH_LINE(n * 8), forward(a, n));
    shows("forward", ONE(SEQUENTIAL));
    want(a, n * 4, false);
    RUN(EACH_LINE(n * 4), forward_floats((float *)a, n));
    want(a, n * 8, false);
    RUN(EACH_LINE(n * 8), backward(a, n));
    shows("backward", ONE(SEQUENTIAL));
    want(a, n * 8, true);
    RUN(EACH_LINE(n * 8), increment(a, n));
    for (size_t i = 0; i < n; i += 3)
        want(a + i, 8, false);
    RUN(0, every_third(a, n));
    for (size_t i = 0; i < n * 8; i += 200)
        want((char *)a + i, 1, false);
    RUN(0, far_apart((char *)a, n * 8));
    shows("far_apart", ONE(STRIDED));
    want(a, n * 8, true);
    RUN(0, count_up((int64_t *)a, n));
    for (size_t column = 0; column < 4; column++)
        for (size_t row = 0; row < n / 100; row++)
            want(a + row * 100 + column, 8, false);
    RUN(0, columns(a, n / 100, 100));
}

static void several(double *a, double *b, double *c, size_t n) {
    want(a, n * 8, true);
    want(b, n * 8, false);
    want(c, n * 8, false);
    RUN(0, triad(a, b, c, n));
    want(b, n ? 8 : 0, true);
    want(a, n * 8, false);
    RUN(EACH_LINE(n * 8), accumulate(b, a, n));
    want(b, 8, true);
    want(b, 800, false);
    RUN(0, accumulate(b, b, 100));
}

static void conditional(double *a, unsigned char *is_set, size_t n) {
    for (size_t i = 0; i < n; i++) {
        is_set[i] = i % 37 == 5;
        want(a + i, is_set[i] ? 8 : 0, false);
    }
    want(is_set, n, false);
    RUN(0, where_set(a, is_set, n));
    memset(a, 0, n * 8);
    ((int64_t *)a)[n / 2] = 7;
    want(a, (n / 2 + 1) * 8, false);
    RUN(0, find((int64_t *)a, 7, n));
}

static void records(struct record *a, size_t n) {
    for (size_t i = 0; i < n; i++) {
        want(&a[i].key, 8, false);
        want(&a[i].right, 8, false);
        want(&a[i].count, 8, false);
    }
    RUN(0, fields(a, n));
    for (size_t i = 0; i + 7 < n; i += 7) {
        a[i].next = i + 14 < n ? &a[i + 7] : NULL;
        want(&a[i].next, 16, false);
    }
    RUN(0, chase(a));
    shows("chase", ONE(CHASED));
    want(&a[3], sizeof(*a), false);
    want(&a[9], sizeof(*a), true);
    RUN(0, assign(&a[9], &a[3]));
}

static void indirect(double *a, int32_t *at, size_t n) {
    for (size_t i = 0; i < n; i++) {
        at[i] = (int32_t)(i * 7919 % 10007);
        want(a + at[i], 8, false);
    }
    want(at, n * 4, false);
    RUN(0, gather(a, at, n));
    shows("gather", ONE(SEQUENTIAL) | ONE(RANDOM));
    for (size_t i = 0; i < n; i++)
        want(a + at[i], 8, true);
    want(at, n * 4, false);
    RUN(0, scatter(a, at, n));
}

static void bytes(char *a, char *b, size_t n) {
    for (size_t i = 0; i + 8 <= n; i += 509)
        want(a + i, 8, false);
    RUN(0, unaligned(a, n));
    want(a, n, true);
    want(b, n, false);
    RUN(0, copy(a, b, n));
    want(b, n, true);
    RUN(0, fill(b, n));
}

int main(int argc, char **argv) {
    (void)argv;
    is_strict = argc > 1;
    double *upper = (double *)(memory + BYTES);
    for (size_t n = 0; n < 40; n++)
        sequential((double *)memory + 3 * n, n);
    sequential((double *)memory + 5, 20001);
    several((double *)memory + 5, upper + 3, upper + 20001, 10007);
    several((double *)memory + 5, upper + 3, upper + 20001, 0);
    conditional((double *)memory + 1, (unsigned char *)upper + 11, 5003);
    records((struct record *)(memory + 8), 1001);
    indirect((double *)memory + 7, (int32_t *)upper + 3, 3001);
    bytes(memory + 3, memory + BYTES + 61, 30011);
    return has_failed;
}
