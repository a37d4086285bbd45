/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_cpp.cc: tiercel.hpp: containers in memory of a space, with the runtime but no daemon.
 */
#include "tiercel.hpp"
#include <cstdio>
#include <list>
#include <vector>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                   \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

struct alignas(256) wide {
    char bytes[256];
};

struct counter {
    long count;
    double weight;
};

int main() {
    tiercel::resource fast(TIERCEL_HIGH_BANDWIDTH), large(TIERCEL_LARGE_CAPACITY);
    tiercel_phase("containers");
    std::pmr::vector<double> x(100000, 1.5, &fast);
    std::pmr::vector<wide> w(100, &large);
    CHECK(x[99999] == 1.5 && reinterpret_cast<std::uintptr_t>(w.data()) % 256 == 0);
    CHECK(fast == large && !(fast == *std::pmr::new_delete_resource()));
    std::pmr::vector<double> y(std::move(x), &large);
    CHECK(y.size() == 100000 && y.get_allocator().resource() == &large);
    std::vector<wide, tiercel::allocator<wide, TIERCEL_LOW_LATENCY>> a(50), b = a;
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 256 == 0);
    std::list<int, tiercel::allocator<int>> list(1000, 7);
    CHECK(list.size() == 1000 && list.back() == 7);
    bool refused = false;
    try {
        tiercel::allocator<double> all;
        all.deallocate(all.allocate(std::numeric_limits<std::size_t>::max() / 4), 0);
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    CHECK(refused);
    tiercel::movable<counter> one(counter{5, 2.5}), two, three(std::move(one));
    CHECK(++three.pin()->count == 6 && (*three.pin()).weight == 2.5 && two.pin()->count == 0);
    two = std::move(three);
    CHECK(two.pin()->count == 6 && !two.move(TIERCEL_COLD)); /* there are no two memories */
    std::puts("tiercel.hpp: containers in spaces, objects behind handles");
    return 0;
}
