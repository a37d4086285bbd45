/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * input.h: takes an input of the fuzzing engine apart. In: bytes. Out: numbers and pieces; zeros
 * where the bytes end. Knows nothing of what they are for.
 */
#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* What must hold of every input; the engine keeps the input that breaks it. */
#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct input {
    const uint8_t *at;
    size_t left;
};

static inline void take_bytes(struct input *in, void *to, size_t bytes) {
    size_t there = bytes < in->left ? bytes : in->left;
    memset(to, 0, bytes);
    if (there)
        memcpy(to, in->at, there);
    in->at += there;
    in->left -= there;
}

static inline uint8_t take_u8(struct input *in) {
    uint8_t value;
    take_bytes(in, &value, sizeof(value));
    return value;
}

static inline uint16_t take_u16(struct input *in) {
    uint16_t value;
    take_bytes(in, &value, sizeof(value));
    return value;
}

static inline uint64_t take_u64(struct input *in) {
    uint64_t value;
    take_bytes(in, &value, sizeof(value));
    return value;
}

#endif
