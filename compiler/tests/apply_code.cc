/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * apply_code.cc: births and loops in C++ that a plan is applied to; apply.c calls them.
 */
#include "apply.h"
#include <stdexcept>

#define NOINLINE __attribute__((noinline))

namespace {
template <class T> struct node {
    T value[4];
    node *next;
};
struct counted {
    int *ends;
    ~counted() { ++*ends; }
};
NOINLINE void may_throw(int i, int count) {
    if (i == count)
        throw std::runtime_error("at the end");
}
} // namespace

NOINLINE void *new_hot() {
    return new node<long>; // HOT new_hot
}

NOINLINE void *new_cold() {
    return new node<double>[3]; // COLD new_cold
}

NOINLINE void *new_beside_cleanup(int *ends) {
    counted guard = {ends};
    return new node<long>(); // HOT new_beside_cleanup
}

NOINLINE int thrown(int count) {
    int done = 0;
    try {
        for (int i = 0; i <= count; i++) { // PHASE thrown
            may_throw(i, count);
            done++;
        }
    } catch (const std::runtime_error &) {
        return done;
    }
    return -1;
}

void unnew(void *node) {
    ::operator delete(node);
}
