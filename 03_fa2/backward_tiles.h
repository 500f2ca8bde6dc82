// What the backward rungs of stage 03 share: tiles, what a warp has of them, how rows are copied and multiplied,
// and the formulas of D, P and dS.
#pragma once

#include "common/attention/backward_tiles.h"
#include "common/attention/kernel_problem.h"
#include "common/attention/score.h"
#include "common/attention/softmax.h"
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

using attention::first_tile;
using attention::QueryTile;

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

/// D = rowsum(dO o O) and L in base 2 of one tile of queries, to its scratch. Of a query that sees no key, and beyond the last one,
/// both are 0: its weights are 0 because every key is hidden.
template <class T, int d>
__device__ inline void row_statistics(const attention::KernelProblem& problem, const attention::Sequence& sequence,
                                      const QueryTile& tile, const gpu::Tensor<const T>& O,
                                      const gpu::Tensor<const T>& dO, const gpu::Tensor<const float>& L,
                                      const gpu::Tensor<float>& L_log2, const gpu::Tensor<float>& D) {
    constexpr int Br = Tiles<d>::Br;
    const auto O_gmem = sequence.queries(O, tile.h);
    const auto dO_gmem = sequence.queries(dO, tile.h);
    const auto L_gmem = sequence.queries(L, tile.h);
    const attention::Range seeing = problem.mask(sequence).seeing_queries();
    const auto L_log2_gmem = L_log2.matrix(0, tile.h, tile.scratch, 1);
    const auto D_gmem = D.matrix(0, tile.h, tile.scratch, 1);

    const int t = gpu::lane_id() % 4;  // four threads a query, 8 elements at a time
    for (int row = threadIdx.x / 4; row < Br; row += threads<d> / 4) {
        const int i = tile.i0 + row;
        const bool sees_a_key = seeing.contains(i);
        float sum = 0;
        for (int c = 8 * t; sees_a_key && c < problem.d; c += 32) {
            const gpu::Vector<T, 8> o = O_gmem.load8(i, c), g = dO_gmem.load8(i, c);
            for (int e = 0; e < 8; ++e) sum += gpu::to_float(o[e]) * gpu::to_float(g[e]);
        }
        sum += gpu::shfl_sync_bfly(sum, 1);
        sum += gpu::shfl_sync_bfly(sum, 2);
        if (t == 0) {
            L_log2_gmem(0, row) = sees_a_key ? L_gmem(i) * gpu::log2_e : 0.0f;
            D_gmem(0, row) = sum;
        }
    }
}

/// P = 2^(S - L) and dS = P o (dP - D) of this lane's weights in a tile, the first of them (i, j). Those of a full tile without dropout
/// need not be looked at one by one; else kept() is as from kept_weights. row(r): L in base 2 and D of query i + r.
/// take(m, half, n, P, dS): gets them in pairs of neighbouring keys.
template <bool modified, int m_tiles, int n_tiles, class Kept, class Row, class Take>
__device__ inline void weights(const float (&S)[m_tiles][n_tiles][4], const float (&dP)[m_tiles][n_tiles][4],
                               const attention::KernelProblem& problem, const attention::Sequence& sequence,
                               const attention::Mask& mask, int head, int i, int j, bool full, Kept kept, Row row,
                               Take take) {
    const float scale_log2 = problem.scale * gpu::log2_e;
    const float kept_scale = problem.dropout.enabled ? problem.dropout.scale : 1.0f;
    const auto with = [&](auto single) {  // each weight may be hidden or dropped
        const attention::ScoreModifier<modified> modifier(problem, sequence, head);
        const auto bits = single ? kept() : 0;
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = 16 * m + 8 * half;
                const gpu::Vector<float, 2> L_and_D = row(r);
                const attention::Range keys = single ? mask.keys(i + r) : attention::Range{};
#pragma unroll
                for (int n = 0; n < n_tiles; ++n) {
                    float P[2], dS[2];
                    for (int c = 0; c < 2; ++c) {
                        const int key = j + 8 * n + c;
                        const bool hidden = single && !keys.contains(key);
                        const float x = S[m][n][2 * half + c];
                        const float s = hidden     ? -gpu::infinity
                                        : modified ? modifier.score(x, i + r, key)
                                                   : x * scale_log2;  // and - L_i: one instruction
                        P[c] = gpu::ex2_approx_ftz(s - L_and_D[0]);
                        const int bit = 2 * ((2 * m + half) * n_tiles + n) + c;
                        const bool dropped = single && (bits >> bit & 1) == 0;
                        float dP_ij = dP[m][n][2 * half + c];
                        if (single) dP_ij = dropped ? 0.0f : kept_scale * dP_ij;
                        dS[c] = hidden ? 0.0f : modifier.derivative(x) * P[c] * (dP_ij - L_and_D[1]);
                        if (dropped) P[c] = 0;
                    }
                    take(m, half, n, P, dS);
                }
            }
        }
    };
    full && !modified && !problem.dropout.enabled ? with(std::false_type()) : with(std::true_type());
}

}  // namespace stage03
