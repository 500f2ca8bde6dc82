// What the stages share when they register: sizes of which closed forms are made, views of workspaces, common refusals.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "common/ladder/registry.h"

namespace ladder {

/// Queries of all sequences and query heads.
inline std::uint64_t total_queries(const attention::Problem& problem) {
    std::uint64_t queries = 0;
    for (int b = 0; b < problem.B; ++b) queries += problem.queries(b);
    return queries * problem.Hq;
}
/// Keys of all sequences and key/value heads.
inline std::uint64_t total_keys(const attention::Problem& problem) {
    std::uint64_t keys = 0;
    for (int b = 0; b < problem.B; ++b) keys += problem.keys(b);
    return keys * problem.Hkv;
}
/// (query, key) pairs of all sequences and query heads, visible or not.
inline std::uint64_t total_pairs(const attention::Problem& problem) {
    std::uint64_t pairs = 0;
    for (int b = 0; b < problem.B; ++b) pairs += std::uint64_t(problem.queries(b)) * problem.keys(b);
    return pairs * problem.Hq;
}

/// B Hq Nq, as KernelProblem::query numbers queries: more than there are if sequences are packed.
inline std::int64_t numbered_queries(const attention::Problem& problem) {
    return std::int64_t(problem.B) * problem.Hq * problem.Nq;
}
/// Likewise B Hkv Nk.
inline std::int64_t numbered_keys(const attention::Problem& problem) {
    return std::int64_t(problem.B) * problem.Hkv * problem.Nk;
}

/// How many rows or keys two ranges have in common.
inline int overlap(attention::Range a, attention::Range b) {
    return std::max(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

/// Rows of tiles: each once, and once for each visit of its tile.
struct VisitedRows {
    std::int64_t once = 0, visits = 0;
    void add(int rows, int times) {
        once += rows;
        visits += std::int64_t(rows) * times;
    }
    /// Over all visits but the last.
    std::int64_t carried() const { return visits - once; }
};

/// What a kernel that visits all tiles with a visible pair does for one head, whichever of its loops is outside.
struct TileCounts {
    std::int64_t tiles = 0;        // (query tile, key tile) pairs visited
    std::int64_t query_tiles = 0;  // visited at least once
    VisitedRows queries, seeing;   // of visited query tiles: all, and those that see some key
    VisitedRows keys, seen;        // of visited key tiles: all, and those that some query sees
};

/// Counted from the mask alone, for tiles of Br queries and Bc keys, and summed over the sequences.
inline TileCounts count_tiles(const attention::Problem& problem, int Br, int Bc) {
    using attention::Range;
    TileCounts sum;
    for (int b = 0; b < problem.B; ++b) {
        const attention::Mask mask = attention::mask_of(problem, b);
        for (int i0 = 0; i0 < mask.Nq; i0 += Br) {
            const Range visited = mask.key_tiles(i0, Br, Bc), tile = {i0, i0 + Br};
            if (visited.empty()) continue;
            const int times = visited.end - visited.begin;
            sum.tiles += times;
            ++sum.query_tiles;
            sum.queries.add(overlap({0, mask.Nq}, tile), times);
            sum.seeing.add(overlap(mask.seeing_queries(), tile), times);
        }
        for (int j0 = 0; j0 < mask.Nk; j0 += Bc) {
            const Range visited = mask.query_tiles(j0, Bc, Br), tile = {j0, j0 + Bc};
            if (visited.empty()) continue;
            const int times = visited.end - visited.begin;
            sum.keys.add(overlap({0, mask.Nk}, tile), times);
            sum.seen.add(overlap(mask.seen_keys(), tile), times);
        }
    }
    return sum;
}

/// A workspace as a matrix of (queries x columns) for each sequence and head, such as S and P: (B, Hq, Nq, columns) for packed
/// sequences too, which use a corner of it.
template <class T>
gpu::Tensor<T> query_matrix(const attention::Problem& problem, const gpu::Buffer& buffer, int columns) {
    const std::int64_t head = std::int64_t(problem.Nq) * columns;
    return buffer.tensor<T>(problem.Hq * head, head, columns, columns);
}

/// A workspace of `columns` fp32 values a query, laid out like the operands: (B, Hq, Nq, columns), or (total, Hq, columns) if packed.
inline gpu::Tensor<float> scratch(const attention::Problem& problem, const gpu::Buffer& buffer, int columns) {
    if (problem.packed()) return buffer.tensor<float>(0, columns, std::int64_t(problem.Hq) * columns, columns);
    return query_matrix<float>(problem, buffer, columns);
}

/// Rung::refuses of a rung that has no dropout.
inline std::optional<std::string> refuses_dropout(const attention::Problem& problem) {
    if (problem.dropout > 0) return "has no dropout";
    return std::nullopt;
}

/// Rung::refuses of a rung on tensor cores, launched through with_16_bit_type_and_d.
inline std::optional<std::string> refuses_on_tensor_cores(const attention::Problem& problem) {
    if (problem.type == attention::DataType::fp32) return "multiplies on tensor cores and takes fp16 or bf16, not fp32";
    if (problem.d != 64 && problem.d != 128) return "takes d = 64 or 128, not " + std::to_string(problem.d);
    return std::nullopt;
}

}  // namespace ladder
