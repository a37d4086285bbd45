/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * tiercel.hpp: memory that suits its use, for C++ containers.
 * In: traits. Out: a std::pmr::memory_resource, an allocator, a phase for a scope's length. Knows
 * nothing beyond tiercel.h.
 *
 *   tiercel::resource fast({.space = TIERCEL_HIGH_BANDWIDTH});
 *   std::pmr::vector<double> x(n, &fast);
 *   std::vector<double, tiercel::allocator<double, TIERCEL_LOW_LATENCY>> y(n);
 *
 * Traits do not apply to allocations below 4 KiB: reserve room in containers at once, or put a pool
 * in between (std::pmr::unsynchronized_pool_resource). Before C++20 assign the fields of traits.
 */
#ifndef TIERCEL_HPP
#define TIERCEL_HPP

#include "tiercel.h"
#include <cstddef>
#include <limits>
#include <memory_resource>
#include <new>

namespace tiercel {

/* Memory of one kind. Resources may free each other's memory. */
class resource final : public std::pmr::memory_resource {
  public:
    explicit resource(const tiercel_traits &traits) noexcept : traits_(traits) {}
    explicit resource(tiercel_space space) noexcept : traits_() { traits_.space = space; }
    const tiercel_traits &traits() const noexcept { return traits_; }

  private:
    void *do_allocate(std::size_t bytes, std::size_t align) override {
        void *memory = tiercel_aligned_alloc(align, bytes, &traits_);
        if (!memory)
            throw std::bad_alloc();
        return memory;
    }
    void do_deallocate(void *memory, std::size_t, std::size_t) override { tiercel_free(memory); }
    /* All return memory to the same heap. */
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
        return dynamic_cast<const resource *>(&other) != nullptr;
    }

    tiercel_traits traits_;
};

/* A stateless allocator of one space, for any standard container. */
template <class T, tiercel_space Space = TIERCEL_ANY_SPACE> struct allocator {
    using value_type = T;
    template <class U> struct rebind { using other = allocator<U, Space>; };

    allocator() noexcept = default;
    template <class U> allocator(const allocator<U, Space> &) noexcept {}

    T *allocate(std::size_t count) {
        tiercel_traits traits = {};
        traits.space = Space;
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T))
            throw std::bad_array_new_length();
        void *memory = tiercel_aligned_alloc(alignof(T), count * sizeof(T), &traits);
        if (!memory)
            throw std::bad_alloc();
        return static_cast<T *>(memory);
    }
    void deallocate(T *memory, std::size_t) noexcept { tiercel_free(memory); }
};

template <class T, class U, tiercel_space Space>
bool operator==(const allocator<T, Space> &, const allocator<U, Space> &) noexcept {
    return true;
}
template <class T, class U, tiercel_space Space>
bool operator!=(const allocator<T, Space> &, const allocator<U, Space> &) noexcept {
    return false;
}

} // namespace tiercel

#endif
