// The box of a tensor copy: which bytes of global memory, and where each of them lies in shared memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/gpu/emulator/emulator.h"

namespace emulator {

/// A tensor map with the coordinates at which a copy begins. A row of the box is what lies along dimension 0.
struct Box {
    TensorMap map;
    int begin[5];

    int row_bytes() const { return map.box[0] * map.element_bytes; }
    /// From row to row in shared memory: the width of the swizzle, whatever the row fills of it.
    int pitch() const { return map.swizzle_bytes == 0 ? row_bytes() : map.swizzle_bytes; }
    int rows() const {
        int n = 1;
        for (int i = 1; i < map.rank; ++i) n *= map.box[i];
        return n;
    }
    /// What an mbarrier counts: all of it, inside the tensor or not.
    int bytes() const { return rows() * row_bytes(); }

    /// Where a byte lies that would lie at `address` without a swizzle: of the three address bits above the 128-byte
    /// line as many as the span has chunks are added, modulo 2, to those of the 16-byte chunk.
    std::uint32_t swizzled(std::uint32_t address) const {
        const auto chunks = static_cast<std::uint32_t>(map.swizzle_bytes / 16);
        return chunks == 0 ? address : address ^ (address >> 7 & (chunks - 1)) << 4;
    }

    /// visit(row, first, bytes, global): bytes [first, first + bytes) of the row are inside the tensor, and `global` is
    /// where they lie there; bytes == 0 if none are.
    template <class Visit>
    void for_each_row(Visit visit) const {
        const std::int64_t low = std::max<std::int64_t>(0, -std::int64_t{begin[0]});
        const std::int64_t high = std::min<std::int64_t>(map.box[0], map.size[0] - begin[0]);
        const int first = static_cast<int>(low) * map.element_bytes;
        const int inside = static_cast<int>(std::max<std::int64_t>(0, high - low)) * map.element_bytes;
        for (int row = 0; row < rows(); ++row) {
            char* global = map.base + (begin[0] + low) * map.element_bytes;
            bool outside = false;
            for (int i = 1, rest = row; i < map.rank; rest /= map.box[i++]) {
                const std::int64_t coordinate = std::int64_t{begin[i]} + rest % map.box[i];
                outside = outside || coordinate < 0 || coordinate >= map.size[i];
                if (!outside) global += coordinate * map.stride[i];
            }
            visit(row, first, outside ? 0 : inside, global);
        }
    }

    /// visit(address, bytes) for each stretch of shared memory that the box fills from `address` on.
    template <class Visit>
    void for_each_range(std::uint32_t address, Visit visit) const {
        if (pitch() == row_bytes()) return visit(address, bytes());
        for (int row = 0; row < rows(); ++row)
            for (int chunk = 0; chunk < row_bytes(); chunk += 16)
                visit(swizzled(address + static_cast<std::uint32_t>(row * pitch() + chunk)), 16);
    }
};

/// The box of a tensor copy with `rank` coordinates; reports those that the map does not take.
Box box_at(const TensorMap& map, const int* coordinates, int rank, const char* name, Site site);
/// `bytes` in a row of global memory: a tensor of one dimension, copied whole. Reports what is no multiple of 16.
Box row_box(const void* data, const Region* region, int bytes, const char* name, Site site);
/// Reports a value that is not a multiple.
void check_multiple(const char* name, const char* what, std::int64_t value, int of, Site site);

}  // namespace emulator
