# a C++ program: containers, strings, exceptions, threads, std::pmr, aligned new
. "${0%/*}/lib.sh"
need g++
cat >main.cpp <<'CPP'
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory_resource>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
struct alignas(256) Wide { char bytes[300]; };
static long work(int seed) {
    std::map<std::string, std::vector<long>> table;
    std::pmr::unsynchronized_pool_resource pool;
    std::pmr::vector<long> pooled(&pool);
    long sum = 0;
    for (int n = 0; n < 100000; n++) {
        table["key" + std::to_string((n * 7919 + seed) % 1009)].push_back(n);
        pooled.push_back(n);
        auto wide = std::make_unique<Wide>();
        sum += seed + reinterpret_cast<unsigned long>(wide.get()) % 256;
        try {
            if (n % 1000 == 0) throw std::runtime_error("thrown " + std::to_string(n));
        } catch (const std::exception &e) {
            sum += static_cast<long>(std::string(e.what()).size());
        }
    }
    for (auto &[key, values] : table) sum += static_cast<long>(key.size() * values.size());
    return sum + static_cast<long>(pooled.size());
}
int main() {
    std::vector<long> sums(6);
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; t++) threads.emplace_back([&sums, t] { sums[t] = work(t); });
    for (auto &thread : threads) thread.join();
    for (long sum : sums) std::printf("%ld\n", sum);
}
CPP
g++ -std=c++17 -O2 main.cpp -o main -pthread
host ./main
echo "status $?"
