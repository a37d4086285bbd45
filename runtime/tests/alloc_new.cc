/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_new.cc: operator new and delete as C++ has them: alignment, bad_alloc, the new handler.
 * In: the preloaded library. Out: one line, 0 when all hold. Knows nothing of malloc.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <string>
#include <vector>

static int handled;
static volatile std::size_t huge = SIZE_MAX / 2 - 100;

struct alignas(128) Aligned {
    char body[200];
};

template <class F> static bool throws(F allocate) {
    try {
        allocate();
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

int main() {
    int bad = 0;
    auto *one = new Aligned;
    auto *many = new Aligned[10];
    bad += reinterpret_cast<std::uintptr_t>(one) % 128 != 0;
    bad += reinterpret_cast<std::uintptr_t>(many) % 128 != 0;
    delete one;
    delete[] many;
    bad += !throws([] { return ::operator new(huge); });
    bad += !throws([] { return ::operator new[](huge); });
    bad += !throws([] { return ::operator new(huge, std::align_val_t(256)); });
    bad += ::operator new(huge, std::nothrow) != nullptr;
    bad += ::operator new[](huge, std::align_val_t(64), std::nothrow) != nullptr;
    std::set_new_handler([] {
        if (++handled == 3)
            std::set_new_handler(nullptr);
    });
    bad += !throws([] { return ::operator new(huge); }) || handled != 3;
    bad += ::operator new(0) == nullptr;
    std::map<std::string, std::vector<int>> map;
    for (int i = 0; i < 20000; i++)
        map[std::to_string(i % 3000)].push_back(i);
    std::size_t total = 0;
    for (auto &entry : map)
        total += entry.second.size();
    bad += total != 20000;
    std::printf("operator new and delete: %d failures\n", bad);
    return bad != 0;
}
