// How the backward rungs of stage 03 divide their work: tiles, what a warp has of them, where scratch lies, which weights are kept.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/gpu/gpu.h"

namespace stage03 {

constexpr int backward_warps = 8;

// Tiles for each d that the kernels are built for; a smaller d is padded with zeros. How many warps lie along the rows of each
// product's result; the others lie along its columns.
template <int d>
struct Tiles {
    static constexpr int Br = d <= 64 ? 128 : 64;
    static constexpr int Bc = d <= 128 ? 128 : 64;
    static constexpr int warps_S = d == 96 || d == 128 ? 2 : 4;
    static constexpr int warps_dK = Bc / 32;
    static constexpr int warps_dQ = d <= 96 ? 4 : 2;
};

/// What a warp holds of a product's result of `rows` x `columns`, and where it begins.
template <int rows, int columns, int row_warps>
struct Part {
    static constexpr int column_warps = backward_warps / row_warps;
    static constexpr int m_tiles = rows / row_warps / 16, n_tiles = columns / column_warps / 8;
    static_assert(m_tiles * row_warps * 16 == rows && n_tiles * column_warps * 8 == columns && n_tiles % 2 == 0);
    using Accumulator = float[m_tiles][n_tiles][4];
    int row = gpu::warp_id() / column_warps * (16 * m_tiles), column = gpu::warp_id() % column_warps * (8 * n_tiles);
};

template <int d>
using PartOfS = Part<Tiles<d>::Br, Tiles<d>::Bc, Tiles<d>::warps_S>;
template <int d>
using PartOfdK = Part<Tiles<d>::Bc, d, Tiles<d>::warps_dK>;
template <int d>
using PartOfdQ = Part<Tiles<d>::Br, d, Tiles<d>::warps_dQ>;

// Rows that are no multiple of 128 bytes are padded by 16 bytes instead of swizzled; both keep ldmatrix free of bank conflicts.
template <class T, int rows, int d>
using Tile16 =
    std::conditional_t<d % 64 == 0, gpu::SharedTile<T, rows, d, gpu::Swizzle::xor_8>, gpu::SharedTile<T, rows, d + 8>>;

/// Number, within one head, of the scratch tile of a sequence's first Br queries: each sequence starts a tile of its own.
__device__ inline int first_tile(const attention::KernelProblem& problem, int b, int Br) {
    return int((problem.cu_q == nullptr ? std::int64_t(b) * problem.Nq : problem.cu_q[b]) / Br) + b;
}

/// The tile of Br queries that a CTA of `prepare` or `finish` works on; of packed sequences some have i0 >= Nq.
struct QueryTile {
    int b, h, i0;
    __device__ QueryTile(const attention::KernelProblem& problem, int Br) {
        const int tiles = attention::ceil_div(problem.Nq, Br), head = blockIdx.x / tiles;
        b = head / problem.Hq, h = head % problem.Hq, i0 = blockIdx.x % tiles * Br;
    }
};

/// attention::Dropout: which of this lane's weights are kept, a bit each, in the order of m, half, n and column; the first is (i, j). Both keys
/// of a pair are words of one draw.
template <int m_tiles, int n_tiles>
__device__ inline auto kept_weights(const attention::Dropout& dropout, int head, int i, int j) {
    using Bits = std::conditional_t<m_tiles * n_tiles <= 8, std::uint32_t, std::uint64_t>;
    if (!dropout.enabled) return ~Bits(0);
    Bits kept = 0;
#pragma unroll 1
    for (int pair = 0; pair < 2 * m_tiles * n_tiles; ++pair) {
        const int key = j + pair % n_tiles * 8;
        const attention::Words words = dropout.words(head, i + pair / n_tiles * 8, key / 4);
        const Bits first = dropout.keeps(key % 4 == 0 ? words[0] : words[2]);
        const Bits second = dropout.keeps(key % 4 == 0 ? words[1] : words[3]);
        kept |= (first | second << 1) << 2 * pair;
    }
    return kept;
}

}  // namespace stage03
