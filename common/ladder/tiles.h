// Launches and scratch of stages whose CTAs are tiles of queries or of keys.
#pragma once

#include <algorithm>

#include "common/ladder/registry.h"

namespace ladder {

/// One CTA for each tile of Br queries of the longest sequence, query head and sequence; those without queries end at
/// once.
inline std::int64_t query_tile_ctas(const attention::Problem& problem, int Br) {
    return std::int64_t(attention::ceil_div(problem.Nq, Br)) * problem.B * problem.Hq;
}
/// Likewise of Bc keys, for each key/value head.
inline std::int64_t key_tile_ctas(const attention::Problem& problem, int Bc) {
    return std::int64_t(attention::ceil_div(problem.Nk, Bc)) * problem.B * problem.Hkv;
}

/// Of the GPU at hand, for persistent grids.
inline int multiprocessors() {
    static const int count = gpu::device().multiprocessors;  // asking takes longer than a launch
    return count;
}

/// Heads of a section of attention::KeyTile: as many as have about one tile of Bc keys for each multiprocessor.
inline int heads_of_section(const attention::Problem& problem, int Bc) {
    const int tiles = std::max(attention::ceil_div(problem.Nk, Bc), 1), heads = std::max(problem.B * problem.Hkv, 1);
    return std::clamp(multiprocessors() / tiles, 1, heads);
}

/// Of one head: scratch tiles of Br queries, each sequence beginning one of its own.
inline std::int64_t scratch_tiles(const attention::Problem& problem, int Br) {
    return (problem.packed() ? problem.cu_q.back() : std::int64_t(problem.B) * problem.Nq) / Br + problem.B;
}

/// Scratch as (head, tile, element of the tile).
inline gpu::Tensor<float> tile_scratch(const attention::Problem& problem, const gpu::Buffer& buffer, int Br,
                                       int tile_elements) {
    return buffer.tensor<float>(0, scratch_tiles(problem, Br) * tile_elements, tile_elements, tile_elements);
}

}  // namespace ladder
