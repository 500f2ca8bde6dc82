// Kernels that put copy engines, mbarriers and clusters to work. As in probes.cuh, they leave what they found in `out`.
#pragma once

#include <bit>

#include "common/gpu/gpu.h"

namespace probes {

using namespace gpu;

// ---- boxes ----

constexpr int image_lines = 64, image_words = image_lines * 32;  // of 128 bytes

struct alignas(1024) BoxImage {
    SharedTile<std::uint32_t, image_lines, 32> words;
    SharedArray<Mbarrier, 1> barrier;
};

/// A CTA copies one box, `line` lines into an image that holds other numbers, shows all of the image, and stores the
/// box elsewhere. cases: a row for each CTA, five coordinates of the load, five of the store.
__global__ void move_boxes(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to,
                           Tensor<const std::int32_t> cases, Tensor<std::uint32_t> out, int box_bytes, int line) {
    auto& smem = shared_memory<BoxImage>();
    const std::uint32_t barrier = smem.barrier.address(0);
    for (int i = threadIdx.x; i < image_words; i += blockDim.x) smem.words(i / 32, i % 32) = 0xA5A50000u | i;
    fence_proxy_async();
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init();
    }
    bar_sync();
    const auto c = cases.matrix(0, 0, blockIdx.x, 1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier, box_bytes);
        cp_async_bulk_tensor_5d(smem.words.address(line, 0), from, c(0, 0), c(0, 1), c(0, 2), c(0, 3), c(0, 4),
                                barrier);
    }
    mbarrier_wait_parity(barrier, 0);
    const auto image = out.matrix(0, 0, std::int64_t{blockIdx.x} * image_lines, image_lines);
    for (int i = threadIdx.x; i < image_words; i += blockDim.x)
        image(i / 32, i % 32) = std::uint32_t(smem.words(i / 32, i % 32));
    if (threadIdx.x == 0) {
        cp_async_bulk_tensor_5d_store(to, c(0, 5), c(0, 6), c(0, 7), c(0, 8), c(0, 9), smem.words.address(line, 0));
        cp_async_bulk_commit_group();
        cp_async_bulk_wait_group_read<0>();
    }
}

// ---- additions ----

struct AddRow {
    SharedTile<float, 1, 128> row;
};

/// Every CTA adds a row of addends to the same row of sums, or (own) each to a row of its own.
__global__ void add_rows(Tensor<float> sums, Tensor<const float> addends, bool own) {
    auto& smem = shared_memory<AddRow>();
    smem.row(0, threadIdx.x) = addends.matrix(0, 0, blockIdx.x, 1)(0, threadIdx.x);
    fence_proxy_async();
    bar_sync();
    if (threadIdx.x == 0) {
        cp_reduce_async_bulk_add(sums.matrix(0, 0, own ? blockIdx.x : 0, 1), 0, 0, smem.row.address(0, 0), 512);
        cp_async_bulk_commit_group();
        cp_async_bulk_wait_group_read<0>();
    }
}

// ---- a ring between a producer and its consumers ----

constexpr int ring_slots = 3, ring_rounds = 11, ring_consumers = 64;

struct EngineRing {
    SharedTile<std::uint32_t, ring_slots, ring_consumers> slot;
    SharedArray<Mbarrier, ring_slots> full, empty;
};

/// Warp 2 has rows copied, warps 0 and 1 read them, each thread another thread's word.
__global__ void engine_ring(Tensor<const std::uint32_t> in, Tensor<std::uint32_t> out) {
    auto& smem = shared_memory<EngineRing>();
    if (threadIdx.x == 0) {
        for (int s = 0; s < ring_slots; ++s) {
            mbarrier_init(smem.full.address(s), 1);
            mbarrier_init(smem.empty.address(s), ring_consumers);
        }
        fence_mbarrier_init();
    }
    bar_sync();
    const auto source = in.matrix(0, 0, 0, ring_rounds);
    const auto results = out.matrix(0, 0, 0, ring_rounds);
    for (int round = 0; round < ring_rounds; ++round) {
        const int s = round % ring_slots, turn = round / ring_slots;
        if (threadIdx.x < ring_consumers) {
            mbarrier_wait_parity(smem.full.address(s), turn % 2);
            results(round, threadIdx.x) = std::uint32_t(smem.slot(s, (threadIdx.x + 37) % ring_consumers));
            mbarrier_arrive(smem.empty.address(s));
        } else if (lane_id() == 0) {
            mbarrier_wait_parity(smem.empty.address(s), (turn + 1) % 2);
            mbarrier_arrive_expect_tx(smem.full.address(s), ring_consumers * 4);
            cp_async_bulk(smem.slot.address(s, 0), source, round, 0, ring_consumers * 4, smem.full.address(s));
        }
    }
}

// ---- clusters ----

constexpr int cluster_ctas = 4;

struct alignas(1024) ClusterShared {
    SharedTile<std::uint32_t, 16, 32> box;  // 16 rows of 64 16-bit elements
    SharedTile<float, 1, 32> mail;
    SharedArray<Mbarrier, 2> barrier;
};

/// Each CTA writes to the next one and reads from the one before; tells all others by their mbarriers; CTA 1 has a box
/// copied to CTAs 0, 2 and 3.
__global__ void cluster_probe(const __grid_constant__ TensorMap map, Tensor<std::uint32_t> out) {
    auto& smem = shared_memory<ClusterShared>();
    const int rank = cluster_ctarank(), next = (rank + 1) % cluster_ctas, before = (rank + 3) % cluster_ctas;
    const std::uint32_t copied = smem.barrier.address(0), told = smem.barrier.address(1);
    if (threadIdx.x == 0) {
        mbarrier_init(copied, 1);
        mbarrier_init(told, cluster_ctas);
        fence_mbarrier_init();
    }
    barrier_cluster_arrive();
    barrier_cluster_wait();
    const std::uint32_t mail = smem.mail.address(0, threadIdx.x);
    st_shared_cluster(mapa(mail, next), static_cast<float>(100 * blockIdx.x + threadIdx.x));
    if (threadIdx.x == 0 && rank != 1) mbarrier_arrive_expect_tx(copied, 2048);
    if (threadIdx.x == 0 && rank == 1)
        cp_async_bulk_tensor_5d_multicast(smem.box.address(0, 0), map, 0, static_cast<int>(blockIdx.x), 0, 0, 0, copied,
                                          13);
    bar_warp_sync(all_lanes);
    if (threadIdx.x < cluster_ctas) mbarrier_arrive_cluster(mapa(told, threadIdx.x));
    mbarrier_wait_parity(told, 0);
    if (rank != 1) mbarrier_wait_parity(copied, 0);

    const auto results = out.matrix(0, 0, std::int64_t{blockIdx.x} * 20, 20);
    results(0, threadIdx.x) =
        rank << 24 | mail >> 24 << 16 | mapa(mail, before) >> 24 << 8 | (mapa(mail, 2) - mail) >> 24;
    barrier_cluster_arrive();
    barrier_cluster_wait();
    results(1, threadIdx.x) = std::bit_cast<std::uint32_t>(float(smem.mail(0, 31 - threadIdx.x)));
    results(2, threadIdx.x) = std::bit_cast<std::uint32_t>(ld_shared_cluster(mapa(mail, before)));
    for (int row = 0; row < 16 && rank != 1; ++row)
        results(4 + row, threadIdx.x) = std::uint32_t(smem.box(row, threadIdx.x));
    barrier_cluster_arrive();
    barrier_cluster_wait();
}

}  // namespace probes
