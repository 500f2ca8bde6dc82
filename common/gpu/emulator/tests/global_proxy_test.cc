// What ordinary stores wrote to global memory and an engine reads in the same launch: fence.proxy.async of the writer.
#include "common/gpu/emulator/tests/reports.h"

namespace {

constexpr int rows = 8, columns = 64;

struct Shared {
    gpu::PanelTile<gpu::bf16, rows, columns> tile;
    gpu::SharedArray<gpu::Mbarrier, 1> full;
};

enum class Fence { nobody, reader, writer, writer_before };

/// Thread 32 writes a chunk of a row, thread 0 copies all rows from there and stores an element of it to `out`.
void write_and_copy(gpu::Matrix<gpu::bf16> matrix, const gpu::TensorMap map, gpu::Matrix<float> out, Fence fence) {
    auto& shared = gpu::shared_memory<Shared>();
    if (threadIdx.x == 0) {
        gpu::mbarrier_init(shared.full.address(0), 1);
        gpu::fence_mbarrier_init();
    }
    if (threadIdx.x == 32) {
        if (fence == Fence::writer_before) gpu::fence_proxy_async();
        matrix.store(5, 8, gpu::Vector<gpu::bf16, 8>{gpu::cvt_rn<gpu::bf16>(3.0f)});
        if (fence == Fence::writer) gpu::fence_proxy_async();
    }
    gpu::bar_sync();
    if (threadIdx.x != 0) return;
    if (fence == Fence::reader) gpu::fence_proxy_async();
    gpu::mbarrier_arrive_expect_tx(shared.full.address(0), sizeof(shared.tile));
    gpu::cp_async_bulk_tensor_5d(shared.tile.address(), map, 0, 0, 0, 0, 0, shared.full.address(0));
    gpu::mbarrier_wait_parity(shared.full.address(0), 0);
    out(0, 0) = gpu::to_float(shared.tile.load8(5, 8)[0]);
}

void write_only(gpu::Matrix<gpu::bf16> matrix) { matrix(7, threadIdx.x) = gpu::cvt_rn<gpu::bf16>(1.0f); }

struct Problem {
    gpu::Buffer buffer{"matrix", 2 * rows*columns}, out_buffer{"out", 16};
    gpu::Tensor<gpu::bf16> tensor = buffer.tensor<gpu::bf16>(0, 0, columns, columns);
    gpu::Matrix<gpu::bf16> matrix = tensor.matrix(0, 0, 0, rows);
    gpu::TensorMap map = gpu::tile_map("matrix", tensor, 1, 1, rows, rows);
    gpu::Matrix<float> out = out_buffer.tensor<float>(0, 0, 4, 4).matrix(0, 0, 0, 1);

    int reports(Fence fence) const {
        return schedules_that_report(
            "cp.async.bulk.tensor of byte 656 of \"matrix\": thread 32 of CTA 0 wrote there with an ordinary store "
            "and has executed no fence.proxy.async since",
            64, sizeof(Shared), write_and_copy, matrix, map, out, fence);
    }
};

TEST(GlobalProxy, TheWriterFencesAfterItsStoreTiny) {
    const Problem problem;
    const int all = static_cast<int>(emulator::standard_schedules().size());
    EXPECT_EQ(problem.reports(Fence::nobody), all);
    EXPECT_EQ(problem.reports(Fence::reader), all);
    EXPECT_EQ(problem.reports(Fence::writer_before), all);
    EXPECT_EQ(problem.reports(Fence::writer), 0);
    float value;
    problem.out_buffer.read(&value, sizeof(value));
    EXPECT_EQ(value, 3);
}

TEST(GlobalProxy, WhatAnEarlierLaunchWroteNeedsNoFenceTiny) {
    const Problem problem;
    EXPECT_EQ(report_of(1, columns, 0, write_only, problem.matrix), "");
    EXPECT_EQ(report_of(1, 64, sizeof(Shared), write_and_copy, problem.matrix, problem.map, problem.out, Fence::writer),
              "");
}

}  // namespace
