// The attention problem as kernels see it: plain numbers, and the few questions that every rung asks about sequences
// and masks. The conventions are those of common/attention/problem.h.
#pragma once

#include <algorithm>

#include "common/attention/dropout.h"
#include "common/attention/problem.h"
#include "common/gpu/memory.h"

namespace attention {

/// Half-open range of rows, keys or tiles.
struct Range {
    int begin, end;
    GPU_HOST_DEVICE bool empty() const { return begin >= end; }
    GPU_HOST_DEVICE bool contains(int i) const { return begin <= i && i < end; }
};

GPU_HOST_DEVICE int clamp(int x, int low, int high) { return x < low ? low : x > high ? high : x; }
template <class Int>
GPU_HOST_DEVICE Int ceil_div(Int a, int b) {
    return (a + b - 1) / b;
}

/// hidden: no query of the tile sees a key of it. full: all see all. mixed: ask visible(i, j).
enum class Tile { hidden, full, mixed };

/// Which keys each query of one sequence sees. Query i sees keys(i) = [i + Nk - Nq - left, i + Nk - Nq + right], cut to
/// [0, Nk).
struct Mask {
    int Nq, Nk;
    int left, right;  // -1: no bound; else at most 2^30: with Nq, Nk <= 2^29, 32 bits hold every sum below

    /// The keys that query i sees; none for a query beyond the last.
    GPU_HOST_DEVICE Range keys(int i) const {
        if (i >= Nq) return {0, 0};
        const int centre = i + Nk - Nq;
        return {left < 0 ? 0 : clamp(centre - left, 0, Nk), right < 0 ? Nk : clamp(centre + right + 1, 0, Nk)};
    }
    /// The queries that see key j; none for a key beyond the last.
    GPU_HOST_DEVICE Range queries(int j) const {
        if (j >= Nk) return {0, 0};
        const int centre = j - (Nk - Nq);
        return {right < 0 ? 0 : clamp(centre - right, 0, Nq), left < 0 ? Nq : clamp(centre + left + 1, 0, Nq)};
    }
    GPU_HOST_DEVICE bool visible(int i, int j) const { return keys(i).contains(j); }

    /// Key tiles of Bc keys that some query in [i, i + Br) sees.
    GPU_HOST_DEVICE Range key_tiles(int i, int Br, int Bc) const {
        if (i >= Nq) return {0, 0};
        const int last = i + Br < Nq ? i + Br - 1 : Nq - 1;
        const Range all = {keys(i).begin, keys(last).end};
        return all.empty() ? Range{0, 0} : Range{all.begin / Bc, ceil_div(all.end, Bc)};
    }
    /// Key tiles of which every query in [i, i + Br), as far as it exists, sees all Bc keys.
    GPU_HOST_DEVICE Range full_key_tiles(int i, int Br, int Bc) const {
        if (i >= Nq) return {0, 0};
        const int last = i + Br < Nq ? i + Br - 1 : Nq - 1;
        return {ceil_div(keys(last).begin, Bc), keys(i).end / Bc};
    }
    /// Query tiles of Br queries that see some key in [j, j + Bc).
    GPU_HOST_DEVICE Range query_tiles(int j, int Bc, int Br) const {
        if (j >= Nk) return {0, 0};
        const int last = j + Bc < Nk ? j + Bc - 1 : Nk - 1;
        const Range all = {queries(j).begin, queries(last).end};
        return all.empty() ? Range{0, 0} : Range{all.begin / Br, ceil_div(all.end, Br)};
    }
    /// The tile of queries [i, i + Br) and keys [j, j + Bc); one that reaches beyond the matrix is never full.
    GPU_HOST_DEVICE Tile classify(int i, int Br, int j, int Bc) const {
        const bool full = i + Br <= Nq && keys(i + Br - 1).begin <= j && j + Bc <= keys(i).end;
        if (full) return Tile::full;
        return key_tiles(i, Br, Bc).contains(j / Bc) ? Tile::mixed : Tile::hidden;
    }

    /// Keys that some query sees. What lies outside must have no effect, even a NaN.
    GPU_HOST_DEVICE Range seen_keys() const { return Nq == 0 ? Range{0, 0} : Range{keys(0).begin, keys(Nq - 1).end}; }
    /// Queries that see some key; the others have O = 0, L = -inf, dQ = 0 and add nothing to dK and dV.
    GPU_HOST_DEVICE Range seeing_queries() const {
        return Nk == 0 ? Range{0, 0} : Range{queries(0).begin, queries(Nk - 1).end};
    }
};

/// One side of the problem's window as Mask takes it: a bound wider than all queries and keys is none, so it is cut to that.
inline int window_side(const Problem& problem, int bound) { return std::min(bound, problem.Nq + problem.Nk); }

/// The mask of sequence b.
inline Mask mask_of(const Problem& problem, int b) {
    return {problem.queries(b), problem.keys(b), window_side(problem, problem.window_left),
            window_side(problem, problem.window_right)};
}

/// One sequence of the batch: where its rows lie in the operands and how many there are.
struct Sequence {
    int batch;
    std::int64_t first_query, first_key;
    int Nq, Nk;

    /// This sequence's rows of one query head's Q, O, dO, dQ, L, ...
    template <class T>
    GPU_DEVICE gpu::Matrix<T> queries(const gpu::Tensor<T>& tensor, int q_head) const {
        return tensor.matrix(batch, q_head, first_query, Nq);
    }
    /// This sequence's rows of one key/value head's K, V, dK, dV.
    template <class T>
    GPU_DEVICE gpu::Matrix<T> keys(const gpu::Tensor<T>& tensor, int kv_head) const {
        return tensor.matrix(batch, kv_head, first_key, Nk);
    }
};

/// One query of the problem.
struct Query {
    int b, h, i;  // sequence, query head, row
};

/// Passed to kernels by value.
struct KernelProblem {
    int B, Hq, Hkv, Nq, Nk, d;
    int window_left, window_right;
    float scale;
    // Device arrays of B + 1 cumulative lengths; null: all sequences have Nq queries and Nk keys.
    const int* cu_q;
    const int* cu_k;
    Dropout dropout;

    GPU_DEVICE Sequence sequence(int b) const {
        if (cu_q == nullptr) return {b, 0, 0, Nq, Nk};
        return {0, cu_q[b], cu_k[b], cu_q[b + 1] - cu_q[b], cu_k[b + 1] - cu_k[b]};
    }
    /// Query number `row` of B * Hq * Nq, rows of a head running fastest. Of packed sequences some have i >= sequence(b).Nq.
    GPU_DEVICE Query query(std::int64_t row) const {
        const int i = row % Nq, head = row / Nq;
        return {head / Hq, head % Hq, i};
    }
    GPU_DEVICE Mask mask(const Sequence& sequence) const {
        return {sequence.Nq, sequence.Nk, window_left, window_right};
    }
    GPU_DEVICE int kv_head(int q_head) const { return q_head / (Hq / Hkv); }
};

}  // namespace attention
