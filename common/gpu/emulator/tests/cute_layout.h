// A layout as CUTLASS writes it, shape:stride: how far element i lies, its coordinates counted with the first mode fastest.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

struct CuteLayout {
    std::vector<std::pair<std::int64_t, std::int64_t>> modes;  // (shape, stride)

    std::int64_t operator()(std::int64_t i) const {
        std::int64_t place = 0;
        for (const auto& [shape, stride] : modes) {
            place += i % shape * stride;
            i /= shape;
        }
        return place;
    }
};
