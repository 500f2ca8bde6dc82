// 03e  decode: few queries, many keys, as when a model writes its next token. Every key is read once and multiplied a few times, so
// what counts is how fast K and V stream in; everything else hides behind that.  (A restart: 03a's loop, and little else, is left.)
//
// Work: the queries of all heads of a group read the same keys, so they are packed: row r of a key/value head is query r / group of
// head r % group, 16 rows are one tile of mma.sync, and where there are fewer, it multiplies padding. One CTA of 4 warps for each
// (tile of rows, key/value head, split of its keys, sequence); each split leaves a state (m, l, U) in fp32: 4 (d + 2) bytes a row.
//
// Stream: a warp owns 16 keys of every tile of 64, copies them itself, and never waits for another warp: no barrier in the loop. Its
// ring holds the keys of 6 steps (d = 64) or 3 (128), all but one on their way. On chip: rings 96 KiB, Q 4: two CTAs an SM on compute
// capability 9.0, so 128 KiB on their way, where 4.8 TB/s and a microsecond of latency ask for 36. Keys lie in one matrix or in pages
// of at least the 16 keys of a step: one lookup for each step in which some key is seen.
//
//   partial, for each tile of the split, by each warp on its own:
//     1. wait for this step's keys; start the copy of those that are `slots` - 1 steps ahead
//     2. S = Q K^T
//     3. mask; m' = max(m, rowmax S), alpha = 2^(m - m'), W = 2^(S - m'), l = alpha l + W
//     4. U = alpha U + W V
//   5. the four warps' states become the split's, as a tree, to global memory
//   merge_splits, one CTA for each query:
//     6. each warp merges its splits, four at a time as a tree
//     7. the warps' states become one, as a tree; O = U / l, L
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/merge.h"
#include "common/attention/score.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage03::decode {

using namespace attention;
using namespace gpu;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;
constexpr int rows = 16;
constexpr int warp_keys = 16;
constexpr int Bc = warps * warp_keys;
constexpr int slots(int width) { return width <= 64 ? 6 : width <= 128 ? 3 : 2; }
constexpr int merge_columns = 4 * warp_size;  // of O, by one CTA of merge_splits
constexpr int at_once = 4;                    // splits

/// The keys and values of a warp's next steps; after the last step its U.
template <class T, int width>
union WarpMemory {
    struct {
        SharedTile<T, warp_keys, width, Swizzle::xor_8> K[slots(width)], V[slots(width)];
    } ring;
    SharedTile<float, rows, width + 8> U;  // padded: the 8-byte stores of a half-warp hit 32 different banks
};

template <class T, int width>
struct Shared {
    SharedTile<T, rows, width, Swizzle::xor_8> Q;
    WarpMemory<T, width> warp[warps];
    SharedTile<float, warps, rows> m, l;
};

struct SharedOfMerge {
    SharedTile<float, warps, merge_columns> u;
    SharedArray<float, warps> m, l;
};

/// How the keys are cut: a tile of rows has as many splits as its key tiles need, `tiles` to each but the last.
struct Splits {
    int count;  // the most that any tile of rows has
    int tiles;
    int page_bits;  // log2 of the page size, if there are pages
};

/// First and last query of a tile of rows.
GPU_HOST_DEVICE Range queries_of(int row_tile, int group) {
    return {row_tile * rows / group, (row_tile * rows + rows - 1) / group + 1};
}
/// The key tiles that they see.
GPU_HOST_DEVICE Range key_tiles(const Mask& mask, int row_tile, int group) {
    const Range queries = queries_of(row_tile, group);
    return mask.key_tiles(queries.begin, queries.end - queries.begin, Bc);
}

/// What is known of some keys for one query: (m, l) and four columns of u.
struct Part {
    State<float> state;
    Vector<float, 4> u = {};
};
__device__ inline Part merged(const Part& A, const Part& B) {
    const auto both = merge(A.state, B.state, Base2{});
    Part result = {both.state};
    for (int c = 0; c < 4; ++c) result.u[c] = both.u(A.u[c], B.u[c]);
    return result;
}
/// All parts as one, by halves.
template <int n>
__device__ inline Part merged_as_tree(Part (&part)[n]) {
#pragma unroll
    for (int distance = n / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int p = 0; p < distance; ++p) part[p] = merged(part[p], part[p + distance]);
    }
    return part[0];
}

/// width: problem.d or the next of 64, 128, 256, columns in between being zeros. paged: K and V are pools of pages, and page_table
/// (B x pages) says which. m, l: a column for each split; U: d columns for each.
template <class T, int width, bool paged, bool modified>
__global__ void __launch_bounds__(threads)
    partial(KernelProblem problem, Splits splits, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V,
            Tensor<const int> page_table, Tensor<float> m_partial, Tensor<float> l_partial, Tensor<float> U_partial) {
    constexpr int slots = decode::slots(width);
    constexpr int chunk = 16 / sizeof(T), chunks = width / chunk;
    auto& smem = shared_memory<Shared<T, width>>();

    const int group = problem.Hq / problem.Hkv;
    const int row_tiles = ceil_div(problem.Nq * group, rows);
    const int row_tile = blockIdx.x % row_tiles, kv_head = blockIdx.x / row_tiles % problem.Hkv;
    const int split = blockIdx.x / row_tiles / problem.Hkv % splits.count;
    const int b = blockIdx.x / row_tiles / problem.Hkv / splits.count;
    const Sequence sequence = problem.sequence(b);
    const Mask mask = problem.mask(sequence);

    Range tiles = key_tiles(mask, row_tile, group);
    tiles.begin += split * splits.tiles;
    if (tiles.begin >= tiles.end) return;
    if (tiles.end > tiles.begin + splits.tiles) tiles.end = tiles.begin + splits.tiles;

    // Keys that no row of the tile sees become zeros: not even a NaN among them may reach a product.
    const Range queries = queries_of(row_tile, group);
    const Range seen = {mask.keys(queries.begin).begin,
                        mask.keys(queries.end < sequence.Nq ? queries.end - 1 : sequence.Nq - 1).end};

    const int lane = lane_id(), warp = warp_id();
    const int g = lane / 4, t = lane % 4;  // of fragments: row g, columns 2t and 2t + 1 (mma.h)
    auto& ring = smem.warp[warp].ring;

    const auto pages = page_table.matrix(0, 0, b, 1);
    const auto copy_keys = [&](int tile, int slot) {
        // The keys of a step lie in one page, which is looked up only if a key of them is seen.
        const int j0 = tile * Bc + warp * warp_keys, page_keys = 1 << splits.page_bits;
        const bool any = j0 < seen.end && seen.begin < j0 + warp_keys;
        const int batch = !paged ? sequence.batch : any ? pages(0, j0 >> splits.page_bits) : 0;
        const std::int64_t first = !paged ? sequence.first_key + j0 : j0 & (page_keys - 1);
        const int there = !paged ? sequence.Nk - j0 : warp_keys;
        const auto K_gmem = K.matrix(batch, kv_head, first, there);
        const auto V_gmem = V.matrix(batch, kv_head, first, there);
#pragma unroll 4
        for (int n = lane; n < warp_keys * chunks; n += warp_size) {
            const int row = n / chunks, column = n % chunks * chunk;
            const int bytes = seen.contains(j0 + row) && column < problem.d ? 16 : 0;
            cp_async_cg_16(ring.K[slot].address(row, column), K_gmem, row, column, bytes);
            cp_async_cg_16(ring.V[slot].address(row, column), V_gmem, row, column, bytes);
        }
    };

    for (int n = threadIdx.x; n < rows * chunks; n += threads) {
        const int row = n / chunks, column = n % chunks * chunk, r = row_tile * rows + row;
        const int bytes = r / group < sequence.Nq && column < problem.d ? 16 : 0;
        cp_async_cg_16(smem.Q.address(row, column), sequence.queries(Q, kv_head * group + r % group), r / group, column,
                       bytes);
    }
    cp_async_commit_group();
    for (int step = 0; step < slots - 1; ++step) {
        if (tiles.begin + step < tiles.end) copy_keys(tiles.begin + step, step);
        cp_async_commit_group();
    }
    cp_async_wait_group<slots - 1>();
    bar_sync();  // Q is everybody's

    const int r[2] = {row_tile * rows + g, row_tile * rows + g + 8};
    const int i[2] = {r[0] / group, r[1] / group};
    const Range keys[2] = {mask.keys(i[0]), mask.keys(i[1])};
    const ScoreModifier<modified> modifier[2] = {{problem, sequence, kv_head * group + r[0] % group},
                                                 {problem, sequence, kv_head * group + r[1] % group}};
    float m[2] = {-infinity, -infinity}, l[2] = {};  // l: of this lane's keys alone
    float U[width / 8][4] = {};

    for (int tile = tiles.begin, slot = 0; tile < tiles.end; ++tile, slot = slot + 1 < slots ? slot + 1 : 0) {
        // 1. All lanes' copies have landed, and all lanes have left the step before, whose slot is free now.
        cp_async_wait_group<slots - 2>();
        bar_warp_sync(all_lanes);
        if (tile + slots - 1 < tiles.end) copy_keys(tile + slots - 1, slot > 0 ? slot - 1 : slots - 1);
        cp_async_commit_group();

        // 2. S = Q K^T.
        float S[2][4] = {};
        for (int k_step = 0; k_step < width / 16; ++k_step) {
            std::uint32_t Q_rmem[4], K_rmem[4];
            ldmatrix_x4(Q_rmem, smem.Q.address(lane % 16, 16 * k_step + 8 * (lane / 16)));
            ldmatrix_x4(K_rmem, ring.K[slot].address(lane % 8 + 8 * (lane / 16), 16 * k_step + 8 * (lane / 8 % 2)));
            mma_sync_m16n8k16<T>(S[0], Q_rmem, K_rmem[0], K_rmem[1]);
            mma_sync_m16n8k16<T>(S[1], Q_rmem, K_rmem[2], K_rmem[3]);
        }

        // 3. The two rows of this lane. The two n8 tiles of S become the A operand of one k16 step: registers {0, 1} and {2, 3}.
        std::uint32_t W_rmem[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float m_new = m[half];
            for (int n = 0; n < 2; ++n) {
                for (int c = 0; c < 2; ++c) {
                    const int j = tile * Bc + warp * warp_keys + 8 * n + 2 * t + c;
                    float& s = S[n][2 * half + c];
                    s = keys[half].contains(j) ? modifier[half].score(s, i[half], j) : -infinity;
                    m_new = fmaxf(m_new, s);
                }
            }
            m_new = fmaxf(m_new, shfl_sync_bfly(m_new, 1));
            m_new = fmaxf(m_new, shfl_sync_bfly(m_new, 2));
            const float alpha = rescale_factor(m[half], m_new);
            m[half] = m_new;
            l[half] *= alpha;
            for (int n = 0; n < 2; ++n) {
                const float W0 = weight(S[n][2 * half], m_new), W1 = weight(S[n][2 * half + 1], m_new);
                l[half] += W0 + W1;
                W_rmem[2 * n + half] = cvt_rn_x2<T>(W0, W1);
            }
            for (int n = 0; n < width / 8; ++n) {
                U[n][2 * half] *= alpha;
                U[n][2 * half + 1] *= alpha;
            }
        }

        // 4. U += W V.
        for (int n = 0; n < width / 8; n += 2) {
            std::uint32_t V_rmem[4];
            ldmatrix_x4_trans(V_rmem, ring.V[slot].address(lane % 16, 8 * n + 8 * (lane / 16)));
            mma_sync_m16n8k16<T>(U[n], W_rmem, V_rmem[0], V_rmem[1]);
            mma_sync_m16n8k16<T>(U[n + 1], W_rmem, V_rmem[2], V_rmem[3]);
        }
    }

    // 5. U takes the ring's place once all lanes have left that. Then one thread for each row and four columns.
    bar_warp_sync(all_lanes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half;
        l[half] += shfl_sync_bfly(l[half], 1);
        l[half] += shfl_sync_bfly(l[half], 2);
        if (t == 0) {
            smem.m(warp, row) = m[half];
            smem.l(warp, row) = l[half];
        }
        for (int n = 0; n < width / 8; ++n)
            smem.warp[warp].U.store(row, 8 * n + 2 * t, Vector<float, 2>{U[n][2 * half], U[n][2 * half + 1]});
    }
    bar_sync();
    for (int n = threadIdx.x; n < rows * width / 4; n += threads) {
        const int row = n / (width / 4), column = n % (width / 4) * 4, r = row_tile * rows + row;
        if (r / group >= sequence.Nq || column >= problem.d) continue;
        Part part[warps];
        for (int w = 0; w < warps; ++w) part[w] = {{smem.m(w, row), smem.l(w, row)}, smem.warp[w].U.load4(row, column)};
        const Part all = merged_as_tree(part);
        const int h = kv_head * group + r % group;
        sequence.queries(U_partial, h).store(r / group, split * problem.d + column, all.u);
        if (column == 0) {
            sequence.queries(m_partial, h)(r / group, split) = all.state.m;
            sequence.queries(l_partial, h)(r / group, split) = all.state.l;
        }
    }
}

/// One CTA for each query and merge_columns columns of O.
template <class T>
__global__ void __launch_bounds__(threads)
    merge_splits(KernelProblem problem, Splits splits, Tensor<const float> m_partial, Tensor<const float> l_partial,
                 Tensor<const float> U_partial, Tensor<T> O, Tensor<float> L) {
    auto& smem = shared_memory<SharedOfMerge>();
    const int lane = lane_id(), warp = warp_id();
    const int column_blocks = ceil_div(problem.d, merge_columns);
    const int column = blockIdx.x % column_blocks * merge_columns + 4 * lane;
    const auto [b, h, i] = problem.query(blockIdx.x / column_blocks);
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const int group = problem.Hq / problem.Hkv;
    const Range tiles = key_tiles(problem.mask(sequence), (i * group + h % group) / rows, group);
    const int count = ceil_div(tiles.end - tiles.begin, splits.tiles);
    const auto m_gmem = sequence.queries(m_partial, h);
    const auto l_gmem = sequence.queries(l_partial, h);
    const auto U_gmem = sequence.queries(U_partial, h);

    // 6. Four splits at a time, whose loads are then under way together.
    Part mine;
    for (int first = warp * at_once; first < count; first += warps * at_once) {
        Part part[at_once];
        for (int p = 0; p < at_once && first + p < count; ++p) {
            const int split = first + p;
            part[p].state = {m_gmem(i, split), l_gmem(i, split)};
            if (column < problem.d) part[p].u = U_gmem.load4(i, split * problem.d + column);
        }
        mine = merged(mine, merged_as_tree(part));
    }
    smem.u.store(warp, 4 * lane, mine.u);
    if (lane == 0) {
        smem.m(warp) = mine.state.m;
        smem.l(warp) = mine.state.l;
    }
    bar_sync();
    if (warp > 0) return;

    // 7. The four as one.
    Part part[warps];
    for (int w = 0; w < warps; ++w) part[w] = {{smem.m(w), smem.l(w)}, smem.u.load4(w, 4 * lane)};
    const Part all = merged_as_tree(part);
    Vector<float, 4> o;
    for (int c = 0; c < 4; ++c) o[c] = all.u[c] * inverse_sum(all.state.l);
    if (column < problem.d) sequence.queries(O, h).store(i, column, cvt_rn<T>(o));
    if (column == 0) sequence.queries(L, h)(i) = log_sum_exp(all.state.m, all.state.l);
}

}  // namespace stage03::decode
