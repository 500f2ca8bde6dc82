// What the backward rungs of stage 03 share: tiles, what a warp has of them, where scratch lies, which weights are kept, how rows are
// copied and multiplied.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/gpu/gpu.h"

namespace stage03 {

// Tiles for each d that the kernels are built for; a smaller d is padded with zeros. How many warps lie along the rows of each
// product's result; the others lie along its columns. How many CTAs the registers of an SM must hold.
template <int d>
struct Tiles {
    static constexpr int Br = 64;
    static constexpr int Bc = d == 96 || d == 128 ? 128 : 64;
    static constexpr int warps = d <= 64 ? 4 : 8, ctas = d <= 64 ? 3 : 1;
    static constexpr int warps_S = d <= 128 ? 2 : 4;
    static constexpr int warps_dK = Bc / 32;
    static constexpr int warps_dQ = d == 96 ? 4 : 2;
};

template <int d>
constexpr int threads = Tiles<d>::warps* gpu::warp_size;

/// What a warp of `warps` holds of a product's result of `rows` x `columns`, and where it begins.
template <int rows, int columns, int warps, int row_warps>
struct Part {
    static constexpr int column_warps = warps / row_warps;
    static constexpr int m_tiles = rows / row_warps / 16, n_tiles = columns / column_warps / 8;
    static_assert(m_tiles * row_warps * 16 == rows && n_tiles * column_warps * 8 == columns && n_tiles % 2 == 0);
    using Accumulator = float[m_tiles][n_tiles][4];
    int row = gpu::warp_id() / column_warps * (16 * m_tiles), column = gpu::warp_id() % column_warps * (8 * n_tiles);
};

template <int d>
using PartOfS = Part<Tiles<d>::Br, Tiles<d>::Bc, Tiles<d>::warps, Tiles<d>::warps_S>;
template <int d>
using PartOfdK = Part<Tiles<d>::Bc, d, Tiles<d>::warps, Tiles<d>::warps_dK>;
template <int d>
using PartOfdQ = Part<Tiles<d>::Br, d, Tiles<d>::warps, Tiles<d>::warps_dQ>;

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

/// attention::Dropout: which of this lane's weights are kept, a bit each, in the order of m, half, n and column; the first is (i, j).
/// Both keys of a pair are words of one draw.
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

/// Starts the copy of rows first ... first + rows - 1 to shared memory, d columns of which the source may have fewer. Rows outside
/// `kept` become zeros: no key or query beyond the mask, not even a NaN, may reach a product.
template <int d, int threads, class Tile, class T>
__device__ inline void copy_rows(Tile& tile, const gpu::Matrix<const T>& source, int first, attention::Range kept) {
    constexpr int chunk = 16 / sizeof(T), chunks = d / chunk;
#pragma unroll 1  // unrolled, its addresses would take the registers that the products need
    for (int i = threadIdx.x; i < Tile::rows * chunks; i += threads) {
        const int row = i / chunks, column = i % chunks * chunk;
        const bool there = kept.contains(first + row) && column < source.columns;
        gpu::cp_async_cg_16(tile.address(row, column), source, first + row, column, there ? 16 : 0);
    }
}

/// C += A B, this warp's part: k_steps products of k16. load_A(r, m, k) and load_B(r, n, k) fetch operands of 16 x 16.
template <class T, int k_steps, int m_tiles, int n_tiles, class LoadA, class LoadB>
__device__ inline void multiply(float (&C)[m_tiles][n_tiles][4], LoadA load_A, LoadB load_B) {
    for (int k = 0; k < k_steps; ++k) {
        std::uint32_t A_rmem[m_tiles][4];
        for (int m = 0; m < m_tiles; ++m) load_A(A_rmem[m], m, k);
        for (int n = 0; n < n_tiles; n += 2) {
            std::uint32_t B_rmem[4];
            load_B(B_rmem, n, k);
            for (int m = 0; m < m_tiles; ++m) {
                gpu::mma_sync_m16n8k16<T>(C[m][n], A_rmem[m], B_rmem[0], B_rmem[1]);
                gpu::mma_sync_m16n8k16<T>(C[m][n + 1], A_rmem[m], B_rmem[2], B_rmem[3]);
            }
        }
    }
}

}  // namespace stage03
