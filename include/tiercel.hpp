/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * tiercel.hpp: memory that suits its use, for C++ containers.
 * In: traits. Out: a std::pmr::memory_resource, an allocator, objects that may move. Knows nothing
 * beyond tiercel.h.
 *
 *   tiercel::resource fast({.space = TIERCEL_HIGH_BANDWIDTH});
 *   std::pmr::vector<double> x(n, &fast);
 *   std::vector<double, tiercel::allocator<double, TIERCEL_LOW_LATENCY>> y(n);
 *
 *   tiercel::movable<record> one(record{});     a small object that moves to where it belongs
 *   one.pin()->count++;                         and stays where it is for this expression
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
#include <type_traits>
#include <utility>

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
    template <class U> struct rebind {
        using other = allocator<U, Space>;
    };

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

/* A T behind a handle (tiercel.h), which ends with it. T is moved by copying its bytes, so nothing
 * may point to it but through a pin. Pins must not outlive it. */
template <class T> class movable {
    static_assert(std::is_trivially_copyable<T>::value, "T must be copied by its bytes");
    static_assert(alignof(T) <= alignof(std::max_align_t), "T's alignment exceeds malloc's");

  public:
    /* The object, which stays where it is as long as this lives. */
    class pinned {
      public:
        explicit pinned(tiercel_handle *handle)
            : handle_(handle), object_(static_cast<T *>(tiercel_handle_pin(handle))) {
            if (!object_)
                throw std::bad_alloc(); /* 32767 pins hold it */
        }
        pinned(pinned &&other) noexcept
            : handle_(std::exchange(other.handle_, nullptr)), object_(other.object_) {}
        pinned(const pinned &) = delete;
        pinned &operator=(const pinned &) = delete;
        pinned &operator=(pinned &&) = delete;
        ~pinned() {
            if (handle_)
                tiercel_handle_unpin(handle_);
        }
        T *operator->() const noexcept { return object_; }
        T &operator*() const noexcept { return *object_; }

      private:
        tiercel_handle *handle_;
        T *object_;
    };

    /* Throws std::bad_alloc. */
    explicit movable(const T &value = T()) : handle_(tiercel_handle_alloc(sizeof(T))) {
        if (!handle_)
            throw std::bad_alloc();
        new (tiercel_handle_pin(handle_)) T(value);
        tiercel_handle_unpin(handle_);
    }
    movable(movable &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    movable &operator=(movable &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    movable(const movable &) = delete;
    movable &operator=(const movable &) = delete;
    ~movable() { tiercel_handle_free(handle_); }

    pinned pin() const { return pinned(handle_); }
    /* False: pinned, no room, or no two memories. */
    bool move(tiercel_temperature to) const noexcept {
        return tiercel_handle_move(handle_, to) == 0;
    }

  private:
    tiercel_handle *handle_;
};

} // namespace tiercel

#endif
