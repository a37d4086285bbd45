/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * digest.cc: as digest.c, in C++: exceptions, virtual calls, containers, objects with static
 * lifetime.
 */
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Shape {
    virtual ~Shape() = default;
    virtual double area() const = 0;
};

struct Square : Shape {
    explicit Square(double side) : side(side) {}
    double area() const override { return side * side; }
    double side;
};

struct Disc : Shape {
    explicit Disc(double radius) : radius(radius) {}
    double area() const override { return 3.14159 * radius * radius; }
    double radius;
};

std::vector<double> begun = {1, 2, 3, 5, 8}; /* made before main */

double areas(size_t n) {
    std::vector<std::unique_ptr<Shape>> all;
    for (size_t i = 0; i < n; i++)
        if (i % 3)
            all.push_back(std::make_unique<Square>(double(i) / 7));
        else
            all.push_back(std::make_unique<Disc>(double(i) / 9));
    double sum = 0;
    for (auto &shape : all)
        sum += shape->area();
    return sum;
}

int thrown(int n) {
    int caught = 0;
    for (int i = 0; i < n; i++) {
        try {
            std::vector<int> some(size_t(i) + 1, i);
            if (some.at(size_t(i)) % 2)
                throw std::runtime_error(std::to_string(i));
            caught += some.at(size_t(i) + 1);
        } catch (const std::out_of_range &) {
            caught += 1000;
        } catch (const std::exception &error) {
            caught += std::stoi(error.what());
        }
    }
    return caught;
}

size_t counted(size_t n) {
    std::map<std::string, size_t> words;
    for (size_t i = 0; i < n; i++)
        words["word " + std::to_string(i * i % 101)] += i;
    size_t hash = 0;
    for (auto &[word, count] : words)
        hash = hash * 31 + word.size() * count;
    return hash;
}

double threaded() {
    std::vector<double> parts(2);
    std::vector<std::thread> threads;
    for (size_t n = 0; n < 2; n++)
        threads.emplace_back([&parts, n] { parts[n] = areas(500 + n); });
    for (auto &thread : threads)
        thread.join();
    return parts[0] - parts[1];
}

} // namespace

int main() {
    std::sort(begun.rbegin(), begun.rend());
    std::printf("%.17g %d %zu %.17g %g\n", areas(1000), thrown(50), counted(3000), threaded(),
                begun.front());
}
