// One small kernel for each primitive of common/gpu. A kernel takes its operands from `in` and leaves what the
// primitive gave in `out`, both rows of 32 words, one column for each lane of a warp.
#pragma once

#include <bit>

#include "common/gpu/gpu.h"

namespace probes {

using namespace gpu;

using Input = Tensor<const std::uint32_t>;
using Output = Tensor<std::uint32_t>;

template <class Words>
GPU_DEVICE auto rows(const Words& words, int n) {
    return words.matrix(0, 0, 0, n);
}
GPU_DEVICE float as_float(std::uint32_t word) { return std::bit_cast<float>(word); }
GPU_DEVICE std::uint32_t as_word(float value) { return std::bit_cast<std::uint32_t>(value); }
template <class T>
GPU_DEVICE std::uint32_t as_word(T value) {
    return std::bit_cast<std::uint16_t>(value);
}
template <class T>
GPU_DEVICE T as_element(std::uint32_t word) {
    return std::bit_cast<T>(static_cast<std::uint16_t>(word));
}

// ---- Number types ----

/// CTA: one row of 32 numbers.
template <class T>
__global__ void convert(Input in, Output out) {
    const int row = blockIdx.x;
    rows(out, row + 1)(row, lane_id()) = as_word(cvt_rn<T>(as_float(rows(in, row + 1)(row, lane_id()))));
}

/// Pairs: the word of this lane is the low half, the one of the next row the high half.
template <class T>
__global__ void convert_pair(Input in, Output out) {
    const int row = blockIdx.x;
    const auto numbers = rows(in, row + 2);
    rows(out, row + 1)(row, lane_id()) =
        cvt_rn_x2<T>(as_float(numbers(row, lane_id())), as_float(numbers(row + 1, lane_id())));
}

/// Every 16-bit pattern, from the index alone; infinities and NaN come first.
constexpr int first_pattern = 0x7C00;
template <class T>
__global__ void widen(Output out) {
    const int row = blockIdx.x;
    rows(out, row + 1)(row, lane_id()) =
        as_word(to_float(as_element<T>((row * warp_size + lane_id()) ^ first_pattern)));
}

__global__ void exponential(Input in, Output out) {
    const int row = blockIdx.x;
    rows(out, row + 1)(row, lane_id()) = as_word(ex2_approx_ftz(as_float(rows(in, row + 1)(row, lane_id()))));
}

// ---- Warp ----

/// Every lane mask in turn.
__global__ void shuffle_bfly(Input in, Output out) {
    const float value = as_float(rows(in, 1)(0, lane_id()));
    for (int mask = 0; mask < warp_size; ++mask)
        rows(out, warp_size)(mask, lane_id()) = as_word(shfl_sync_bfly(value, mask));
}

/// in: row 0 values, row 1 + i the lane that each lane asks.
__global__ void shuffle_idx(Input in, Output out, int n) {
    const float value = as_float(rows(in, 1)(0, lane_id()));
    for (int i = 0; i < n; ++i) {
        const int source = rows(in, n + 1)(i + 1, lane_id());
        rows(out, n)(i, lane_id()) = as_word(shfl_sync_idx(value, source));
    }
}

/// in: bit i of a lane's word is its predicate in round i. out: ballot, any and all of each round.
__global__ void votes(Input in, Output out, int n) {
    for (int i = 0; i < n; ++i) {
        const bool predicate = rows(in, 1)(0, lane_id()) >> i & 1;
        rows(out, 3 * n)(3 * i, lane_id()) = vote_sync_ballot(predicate);
        rows(out, 3 * n)(3 * i + 1, lane_id()) = vote_sync_any(predicate);
        rows(out, 3 * n)(3 * i + 2, lane_id()) = vote_sync_all(predicate);
    }
}

/// All lanes meet, then the halves of the warp each on a branch of their own, then lanes that alternate.
struct WarpExchange {
    SharedTile<std::uint32_t, 3, warp_size> words;
};
__global__ void warp_exchange(Input in, Output out) {
    auto& words = shared_memory<WarpExchange>().words;
    const std::uint32_t word = rows(in, 1)(0, lane_id());
    const auto results = rows(out, 3);
    words(0, lane_id()) = word;
    bar_warp_sync(all_lanes);
    results(0, lane_id()) = words(0, (lane_id() + 5) % warp_size);

    words(1, lane_id()) = word + 1;
    if (lane_id() < 16) {
        bar_warp_sync(0x0000FFFFu);
        results(1, lane_id()) = words(1, (lane_id() + 3) % 16);
    } else {
        bar_warp_sync(0xFFFF0000u);
        results(1, lane_id()) = words(1, 16 + (lane_id() + 7) % 16);
    }

    words(2, lane_id()) = word + 2;
    if (lane_id() % 2 == 0) {
        bar_warp_sync(0x55555555u);
    } else {
        bar_warp_sync(0xAAAAAAAAu);
    }
    results(2, lane_id()) = words(2, (lane_id() + 2) % warp_size);
}

/// One row for each warp: where each thread thinks that it is.
__global__ void thread_positions(Output out) {
    const int warps = blockDim.x / warp_size;
    rows(out, warps * gridDim.x)(blockIdx.x * warps + warp_id(), lane_id()) =
        threadIdx.x | lane_id() << 10 | warp_id() << 16 | blockIdx.x << 24;
}

// ---- CTA barriers ----

constexpr int exchange_warps = 4, exchange_threads = exchange_warps * warp_size, exchange_rounds = 8;

/// Every round each thread passes its word to another warp.
struct CtaExchange {
    SharedTile<std::uint32_t, exchange_warps, warp_size> words;
};
__global__ void cta_exchange(Input in, Output out) {
    auto& words = shared_memory<CtaExchange>().words;
    std::uint32_t word = rows(in, exchange_warps)(warp_id(), lane_id());
    for (int round = 0; round < exchange_rounds; ++round) {
        words(warp_id(), lane_id()) = word;
        bar_sync();
        word = words((warp_id() + 1) % exchange_warps, (lane_id() + round) % warp_size) * 5 + round;
        bar_sync();
        rows(out, exchange_rounds * exchange_warps)(round * exchange_warps + warp_id(), lane_id()) = word;
    }
}

/// The same within pairs of warps, each pair with a barrier of its own; pair 1 makes three times as many rounds.
__global__ void pair_exchange(Input in, Output out) {
    auto& words = shared_memory<CtaExchange>().words;
    const int pair = warp_id() / 2;
    std::uint32_t word = rows(in, exchange_warps)(warp_id(), lane_id());
    for (int round = 0; round < (pair == 0 ? exchange_rounds : 3 * exchange_rounds); ++round) {
        words(warp_id(), lane_id()) = word;
        barrier_sync(1 + pair, 2 * warp_size);
        word = words(warp_id() ^ 1, (lane_id() + round) % warp_size) * 3 + round;
        barrier_sync(1 + pair, 2 * warp_size);
    }
    rows(out, exchange_warps)(warp_id(), lane_id()) = word;
}

/// Warps 0 and 1 write, warps 2 and 3 read, through two buffers: barriers 2 + b say that buffer b is full, 4 + b that
/// it is empty. Who has nothing to wait for only arrives.
struct HandOver {
    SharedTile<std::uint32_t, 2, 2 * warp_size> buffers;
};
__global__ void hand_over(Input in, Output out) {
    auto& buffers = shared_memory<HandOver>().buffers;
    const int own = threadIdx.x % (2 * warp_size);
    for (int round = 0; round < exchange_rounds; ++round) {
        const int buffer = round % 2;
        if (warp_id() < 2) {
            if (round >= 2) barrier_sync(4 + buffer, exchange_threads);
            buffers(buffer, own) = rows(in, exchange_warps)(warp_id(), lane_id()) + round;
            barrier_arrive(2 + buffer, exchange_threads);
        } else {
            barrier_sync(2 + buffer, exchange_threads);
            rows(out, 2 * exchange_rounds)(2 * round + warp_id() - 2, lane_id()) =
                buffers(buffer, (own + 11 * round + 1) % (2 * warp_size));
            if (round + 2 < exchange_rounds) barrier_arrive(4 + buffer, exchange_threads);
        }
    }
}

// ---- cp.async ----

constexpr int copy_sizes = 17;  // 0 ... 16 bytes read
struct CopySizes {
    SharedTile<std::uint32_t, warp_size, 4 * copy_sizes> words;
};
/// Group i of each lane reads i bytes. Groups are read back as the waits cover them, by the lane that issued them.
template <class T>
__global__ void copy_bytes(Tensor<const T> in, Output out) {
    auto& words = shared_memory<CopySizes>().words;
    const auto source = in.matrix(0, 0, 0, warp_size);
    constexpr int chunk = 16 / sizeof(T);
    for (int bytes = 0; bytes < copy_sizes; ++bytes) {
        // With nothing to read the row may lie beyond the matrix.
        const int row = bytes == 0 ? warp_size + lane_id() : lane_id();
        cp_async_cg_16(words.address(lane_id(), 4 * bytes), source, row, chunk * (bytes % 4), bytes);
        cp_async_commit_group();
    }
    const auto show = [&](int first, int last) {
        for (int i = 4 * first; i < 4 * last; ++i) rows(out, 4 * copy_sizes)(i, lane_id()) = words(lane_id(), i);
    };
    cp_async_wait_group<copy_sizes - 1>();
    show(0, 1);
    cp_async_wait_group<7>();
    show(1, copy_sizes - 7);
    cp_async_wait_group<1>();
    show(copy_sizes - 7, copy_sizes - 1);
    cp_async_wait_group<0>();
    show(copy_sizes - 1, copy_sizes);
}

/// A ring of three tiles as the attention kernels use it: two groups of two copies each are under way while the oldest
/// tile is read by other lanes than those that asked for it.
constexpr int ring_tiles = 3, ring_steps = 12;
struct CopyRing {
    SharedTile<std::uint32_t, ring_tiles * warp_size, 8> words;
};
__global__ void copy_ring(Input in, Output out) {
    auto& words = shared_memory<CopyRing>().words;
    const auto source = rows(in, ring_steps * 8);  // a step is 8 rows of 32 words
    const auto issue = [&](int step) {
        if (step < ring_steps)
            for (int half = 0; half < 2; ++half)
                cp_async_cg_16(words.address(step % ring_tiles * warp_size + lane_id(), 4 * half), source,
                               step * 8 + lane_id() / 4, lane_id() % 4 * 8 + 4 * half, 16);
        cp_async_commit_group();
    };
    issue(0);
    issue(1);
    for (int step = 0; step < ring_steps; ++step) {
        issue(step + 2);
        cp_async_wait_group<2>();
        bar_sync();
        for (int i = 0; i < 8; ++i)
            rows(out, ring_steps * 8)(step * 8 + i, lane_id()) =
                words(step % ring_tiles * warp_size + (lane_id() + 13) % warp_size, i);
        bar_sync();
    }
}

// ---- Tensor cores ----

/// A tile of different numbers; in: row i holds the row (low byte) and chunk (high byte) whose address each lane
/// passes.
struct MatrixTile {
    SharedTile<std::uint16_t, 64, 64, Swizzle::xor_8> elements;
};
template <bool transposed>
__global__ void load_matrices(Input in, Output out, int n) {
    auto& elements = shared_memory<MatrixTile>().elements;
    for (int i = lane_id(); i < 64 * 64; i += warp_size)
        elements(i / 64, i % 64) = static_cast<std::uint16_t>(i * 7919);
    bar_sync();
    for (int i = 0; i < n; ++i) {
        const std::uint32_t where = rows(in, n)(i, lane_id());
        const std::uint32_t address = elements.address(where & 0xFF, 8 * (where >> 8));
        std::uint32_t r[4];
        if constexpr (transposed) {
            ldmatrix_x4_trans(r, address);
        } else {
            ldmatrix_x4(r, address);
        }
        for (int j = 0; j < 4; ++j) rows(out, 4 * n)(4 * i + j, lane_id()) = r[j];
    }
}

/// One instruction a CTA. in: rows of registers, 4 of A, 2 of B, 4 of C; out: 4 of D.
template <class T>
__global__ void multiply(Input in, Output out) {
    const int first = blockIdx.x * 10;
    const auto registers = rows(in, first + 10);
    std::uint32_t a[4];
    float d[4];
    for (int j = 0; j < 4; ++j) a[j] = registers(first + j, lane_id());
    for (int j = 0; j < 4; ++j) d[j] = as_float(registers(first + 6 + j, lane_id()));
    mma_sync_m16n8k16<T>(d, a, registers(first + 4, lane_id()), registers(first + 5, lane_id()));
    for (int j = 0; j < 4; ++j) rows(out, 4 * (blockIdx.x + 1))(4 * blockIdx.x + j, lane_id()) = as_word(d[j]);
}

// ---- Memory ----

/// One addition to each element, and none that meets another.
__global__ void add_once(Tensor<float> sums, Input addends) {
    const int row = blockIdx.x;
    red_global_add_f32(sums.matrix(0, 0, 0, row + 1), row, lane_id(), as_float(rows(addends, row + 1)(row, lane_id())));
}

/// Every thread of every CTA adds small integers to the same 32 elements: exact in any order.
__global__ void add_all(Tensor<float> sums) {
    const auto row = sums.matrix(0, 0, 0, 1);
    red_global_add_f32(row, 0, 0, 1.0f);
    red_global_add_f32(row, 0, 1 + threadIdx.x % 31, static_cast<float>(1 + blockIdx.x % 3));
}

/// Addresses in elements from the tile's start, for every element, and what lies there when written by (row, column).
constexpr int tile_rows = 16, tile_columns = 64;
template <class T, Swizzle swizzle>
struct TileLayout {
    SharedTile<T, 3, 8> in_front;
    SharedTile<T, tile_rows, tile_columns, swizzle> tile;
};
template <class T, Swizzle swizzle>
__global__ void tile_addresses(Output out) {
    auto& tile = shared_memory<TileLayout<T, swizzle>>().tile;
    const auto results = rows(out, 2 * tile_rows * tile_columns / warp_size);
    for (int i = lane_id(); i < tile_rows * tile_columns; i += warp_size) {
        const int row = i / tile_columns, column = i % tile_columns;
        tile(row, column) = cvt_rn<T>(static_cast<float>(i));
        results(i / warp_size, lane_id()) = tile.address(row, column) - tile.address(0, 0);
    }
    bar_sync();
    // The same memory without a swizzle shows where each element went.
    auto& plain = reinterpret_cast<SharedTile<T, tile_rows, tile_columns>&>(tile);
    for (int i = lane_id(); i < tile_rows * tile_columns; i += warp_size)
        results((tile_rows * tile_columns + i) / warp_size, lane_id()) =
            as_word(to_float(plain(i / tile_columns, i % tile_columns)));
}

/// Vectors of two and four elements from global memory, through a swizzled tile, and back to global memory.
template <class T>
struct VectorTile {
    SharedTile<T, warp_size, 64, Swizzle::xor_8> elements;
};
template <class T>
__global__ void move_vectors(Tensor<const T> in, Tensor<T> moved) {
    auto& elements = shared_memory<VectorTile<T>>().elements;
    const auto source = in.matrix(0, 0, 0, warp_size);
    const auto destination = moved.matrix(0, 0, 0, warp_size);
    for (int column = 0; column < 32; column += 2) elements.store(lane_id(), column, source.load2(lane_id(), column));
    for (int column = 32; column < 64; column += 4) elements.store(lane_id(), column, source.load4(lane_id(), column));
    bar_sync();
    const int row = (lane_id() + 9) % warp_size;
    for (int column = 0; column < 32; column += 4) destination.store(lane_id(), column, elements.load4(row, column));
    for (int column = 32; column < 64; column += 2) destination.store(lane_id(), column, elements.load2(row, column));
}

/// Every element of `batches` x `heads` x `n` rows of a strided tensor, from first_row on: one row of out for each.
template <class T>
__global__ void read_strided(Tensor<const T> in, Output out, int batches, int heads, int first_row, int n) {
    int result = 0;
    for (int b = 0; b < batches; ++b)
        for (int h = 0; h < heads; ++h) {
            const auto matrix = in.matrix(b, h, first_row, n);
            for (int row = 0; row < n; ++row, ++result)
                rows(out, batches * heads * n)(result, lane_id()) = as_word(to_float(matrix(row, lane_id())));
        }
}

/// Writes what (b, h, row, column) names.
__global__ void write_strided(Tensor<std::uint32_t> tensor, int batches, int heads, int first_row, int n) {
    for (int b = 0; b < batches; ++b)
        for (int h = 0; h < heads; ++h)
            for (int row = 0; row < n; ++row)
                tensor.matrix(b, h, first_row, n)(row, lane_id()) = b << 24 | h << 16 | row << 8 | lane_id();
}

}  // namespace probes
