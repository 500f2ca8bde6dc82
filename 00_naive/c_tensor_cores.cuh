// 00c  tensor_cores: still three kernels, each at the pace of the hardware. A restart: mma.sync, cp.async, 16 bytes at a time.
//
//   scores   S = scale * Q K^T   one CTA of 4 warps for each 128 x 128 tile of S that some query sees
//   softmax  P = softmax(S)      one warp for each row, kept in shared memory: S is read once, P written once (softmax_row.cuh)
//   output   O = P V             one CTA of 4 warps for each 128 queries, all d columns
//
// In both products a warp owns a quarter of the CTA's tile (64 x 64; 64 x 32 of O for d = 64), so that an element fetched from
// shared memory by ldmatrix is used 64 times (P for d = 64: 32). The inner dimension comes in steps of 64, copied by cp.async ahead of the products:
// both steps of d = 128 at once in `scores`, two steps ahead in `output`. 128-byte rows, swizzled: no bank conflicts.
//
// On chip, d = 128 (d = 64):  scores  Q, K 2 (1) x (128 + 128) x 64, 64 KiB (32);  S in 128 registers a thread.
//                             softmax 4 rows of 4096 keys, 32 KiB, or of 16384 for longer rows, 128 KiB.
//                             output  P, V 3 x (128 x 64 + 64 x d), 96 KiB (72);   O in 128 (64) registers a thread.
// FLOPs: 4 Nq Nk d. S and P: 4 Nq Nk elements, each asked for once on its way out and once on its way back. Q, K, V: Q Nq Nk d / 128,
// K and V Nq Nk d / 128 each, which the L2 cache serves.
//
// What it shows: the products are now cheap, and the time is what 4 Nq Nk elements take on the way to memory and back. That is what
// the next stages leave out.
//
// Rows of S and P are padded to a multiple of 8 keys, so that they begin at multiples of 16 bytes. Hidden keys: S of a visited tile is
// stored as it comes; `softmax` alone looks at the mask. It writes P = 0 for the hidden keys of every key tile that `output` reads,
// and tiles that no query of 128 sees are neither written nor read.
#pragma once

#include "00_naive/softmax_row.cuh"

namespace stage00::c {

using namespace attention;
using namespace gpu;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;

constexpr int Br = 128;   // queries of a tile
constexpr int Bc = 128;   // keys of a tile of `scores`
constexpr int step = 64;  // inner dimension of a step: columns of Q and K, keys of P and V

/// Keys of a row of S that `softmax` holds in shared memory: few where they suffice, so that more warps fit on an SM.
GPU_HOST_DEVICE constexpr int held(int Nk) { return Nk <= 4096 ? 4096 : 16384; }

template <class T, int d>
struct SharedScores {
    SharedTile<T, Br, step, Swizzle::xor_8> Q[d / step];
    SharedTile<T, Bc, step, Swizzle::xor_8> K[d / step];
};

template <class T, int held>
struct SharedSoftmax {
    SharedTile<T, warps, held> S;
};

constexpr int slots = 3;
template <class T, int d>
struct SharedOutput {
    SharedTile<T, Br, step, Swizzle::xor_8> P[slots];
    SharedTile<T, step, d, Swizzle::xor_8> V[slots];
};

/// Starts the copy of a block to shared memory: rows from first_row on, columns from first_column on. Rows outside `kept` and columns
/// from `columns` on become zeros: no key or query beyond the mask, not even a NaN, may reach a product.
template <class T, int rows, int width>
__device__ inline void copy_block(SharedTile<T, rows, width, Swizzle::xor_8>& tile, const Matrix<const T>& source,
                                  int first_row, Range kept, int first_column, int columns) {
    constexpr int chunks = width / chunk;
#pragma unroll 1  // unrolled, its addresses would take the registers that the products need
    for (int n = threadIdx.x; n < rows * chunks; n += threads) {
        const int row = n / chunks, column = n % chunks * chunk;
        const bool there = kept.contains(first_row + row) && first_column + column < columns;
        cp_async_cg_16(tile.address(row, column), source, first_row + row, first_column + column, there ? 16 : 0);
    }
}

/// S: (B, Hq, Nq, padded(Nk)), also for packed sequences, which use a corner of it.
template <class T, int d>
__global__ void __launch_bounds__(threads)
    scores(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<T> S) {
    constexpr int steps = d / step, m_tiles = Br / 2 / 16, n_tiles = Bc / 2 / 8;
    auto& smem = shared_memory<SharedScores<T, d>>();

    const int kv_tiles = ceil_div(problem.Nk, Bc), q_tiles = ceil_div(problem.Nq, Br);
    const int q_tile = blockIdx.x / kv_tiles, head = q_tile / q_tiles, h = head % problem.Hq;
    const int i0 = q_tile % q_tiles * Br, j0 = int(blockIdx.x) % kv_tiles * Bc;
    const Sequence sequence = problem.sequence(head / problem.Hq);
    const Mask mask = problem.mask(sequence);
    if (mask.classify(i0, Br, j0, Bc) == Tile::hidden) return;

    const auto Q_gmem = sequence.queries(Q, h);
    const auto K_gmem = sequence.keys(K, problem.kv_head(h));
    const auto S_gmem = S.matrix(head / problem.Hq, h, 0, sequence.Nq);

    const int lane = lane_id(), warp = warp_id();
    const int g = lane / 4, t = lane % 4;  // of fragments: row g, columns 2t and 2t + 1 (mma.h)
    const int warp_row = warp / 2 * (Br / 2), warp_key = warp % 2 * (Bc / 2);

    // 1. Every step of Q and K on its way.
    for (int n = 0; n < steps; ++n) {
        copy_block(smem.Q[n], Q_gmem, i0, mask.seeing_queries(), n * step, d);
        copy_block(smem.K[n], K_gmem, j0, mask.seen_keys(), n * step, d);
        cp_async_commit_group();
    }

    // 2. S += Q K^T, step by step as they land.
    float S_rmem[m_tiles][n_tiles][4] = {};
#pragma unroll
    for (int n = 0; n < steps; ++n) {
        if (n + 1 < steps) cp_async_wait_group<1>();
        else cp_async_wait_group<0>();
        bar_sync();
        for (int k_step = 0; k_step < step / 16; ++k_step) {
            std::uint32_t Q_rmem[m_tiles][4];
            for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                const int row = warp_row + 16 * m_tile + lane % 16;
                ldmatrix_x4(Q_rmem[m_tile], smem.Q[n].address(row, 16 * k_step + 8 * (lane / 16)));
            }
            for (int n_tile = 0; n_tile < n_tiles; n_tile += 2) {
                const int key = warp_key + 8 * n_tile + lane % 8 + 8 * (lane / 16);
                std::uint32_t K_rmem[4];
                ldmatrix_x4(K_rmem, smem.K[n].address(key, 16 * k_step + 8 * (lane / 8 % 2)));
                for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                    mma_sync_m16n8k16<T>(S_rmem[m_tile][n_tile], Q_rmem[m_tile], K_rmem[0], K_rmem[1]);
                    mma_sync_m16n8k16<T>(S_rmem[m_tile][n_tile + 1], Q_rmem[m_tile], K_rmem[2], K_rmem[3]);
                }
            }
        }
    }

    // 3. S to global memory, the padding included.
    for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
        for (int half = 0; half < 2; ++half) {
            const int i = i0 + warp_row + 16 * m_tile + g + 8 * half;
            if (i >= sequence.Nq) continue;
            for (int n_tile = 0; n_tile < n_tiles; ++n_tile) {
                const int j = j0 + warp_key + 8 * n_tile + 2 * t;
                if (j >= padded(sequence.Nk)) continue;
                const float* s = &S_rmem[m_tile][n_tile][2 * half];
                S_gmem.store(i, j, cvt_rn<T>(Vector<float, 2>{s[0] * problem.scale, s[1] * problem.scale}));
            }
        }
    }
}

/// One warp a query.
template <class T, int held>
__global__ void __launch_bounds__(threads)
    softmax(KernelProblem problem, Tensor<const T> S, Tensor<T> P, Tensor<float> L) {
    auto& smem = shared_memory<SharedSoftmax<T, held>>();
    const auto [b, h, i] = problem.query(std::int64_t(blockIdx.x) * warps + warp_id());
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const Mask mask = problem.mask(sequence);
    const Range tiles = mask.key_tiles(i / Br * Br, Br, step);  // that `output` reads of this row
    const int end = tiles.end * step < padded(sequence.Nk) ? tiles.end * step : padded(sequence.Nk);
    const auto [m, l] = softmax_row(smem.S, S.matrix(b, h, 0, sequence.Nq), P.matrix(b, h, 0, sequence.Nq), i,
                                    mask.keys(i), {tiles.begin * step, end});
    if (lane_id() == 0) sequence.queries(L, h)(i) = log_sum_exp(m, l);
}

template <class T, int d>
__global__ void __launch_bounds__(threads)
    output(KernelProblem problem, Tensor<const T> P, Tensor<const T> V, Tensor<T> O) {
    constexpr int m_tiles = Br / 2 / 16, n_tiles = d / 2 / 8;
    auto& smem = shared_memory<SharedOutput<T, d>>();

    const int q_tiles = ceil_div(problem.Nq, Br);
    const int head = blockIdx.x / q_tiles, h = head % problem.Hq;
    const int i0 = int(blockIdx.x) % q_tiles * Br;
    const Sequence sequence = problem.sequence(head / problem.Hq);
    const Mask mask = problem.mask(sequence);
    const Range tiles = mask.key_tiles(i0, Br, step);

    const auto P_gmem = P.matrix(head / problem.Hq, h, 0, sequence.Nq);
    const auto V_gmem = sequence.keys(V, problem.kv_head(h));
    const auto O_gmem = sequence.queries(O, h);

    const int lane = lane_id(), warp = warp_id();
    const int g = lane / 4, t = lane % 4;
    const int warp_row = warp / 2 * (Br / 2), warp_column = warp % 2 * (d / 2);

    // Starts the copy of a key tile; a group in any case, so that the wait below counts tiles.
    const auto copy = [&](int tile) {
        if (tile < tiles.end) {
            const int slot = tile % slots;
            copy_block(smem.P[slot], P_gmem, i0, {0, sequence.Nq}, tile * step, padded(sequence.Nk));
            copy_block(smem.V[slot], V_gmem, tile * step, mask.seen_keys(), 0, d);
        }
        cp_async_commit_group();
    };

    // 1. The first two key tiles on their way.
    for (int n = 0; n < slots - 1; ++n) copy(tiles.begin + n);

    float O_rmem[m_tiles][n_tiles][4] = {};
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
        // 2. This tile has landed, and everybody has left the slot of the tile before, which takes the next copy.
        cp_async_wait_group<slots - 2>();
        bar_sync();
        copy(tile + slots - 1);

        // 3. O += P V.
        auto& P_smem = smem.P[tile % slots];
        auto& V_smem = smem.V[tile % slots];
        for (int k_step = 0; k_step < step / 16; ++k_step) {
            std::uint32_t P_rmem[m_tiles][4];
            for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                const int row = warp_row + 16 * m_tile + lane % 16;
                ldmatrix_x4(P_rmem[m_tile], P_smem.address(row, 16 * k_step + 8 * (lane / 16)));
            }
            for (int n_tile = 0; n_tile < n_tiles; n_tile += 2) {
                const int column = warp_column + 8 * n_tile + 8 * (lane / 16);
                std::uint32_t V_rmem[4];
                ldmatrix_x4_trans(V_rmem, V_smem.address(16 * k_step + lane % 16, column));
                for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                    mma_sync_m16n8k16<T>(O_rmem[m_tile][n_tile], P_rmem[m_tile], V_rmem[0], V_rmem[1]);
                    mma_sync_m16n8k16<T>(O_rmem[m_tile][n_tile + 1], P_rmem[m_tile], V_rmem[2], V_rmem[3]);
                }
            }
        }
    }

    // 4. O to global memory; zeros where no key is seen.
    for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
        for (int half = 0; half < 2; ++half) {
            const int i = i0 + warp_row + 16 * m_tile + g + 8 * half;
            if (i >= sequence.Nq) continue;
            for (int n_tile = 0; n_tile < n_tiles; ++n_tile) {
                const float* o = &O_rmem[m_tile][n_tile][2 * half];
                O_gmem.store(i, warp_column + 8 * n_tile + 2 * t, cvt_rn<T>(Vector<float, 2>{o[0], o[1]}));
            }
        }
    }
}

}  // namespace stage00::c
