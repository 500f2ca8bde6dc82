// ThreadSanitizer as race detector: it sees races in global memory, of threads and of copies, and nothing else.
// The same kernels run without it, where only the correct ones say something.
#include <cstdlib>
#include <numeric>
#include <vector>

#include "common/gpu/emulator/tests/reports.h"

namespace {

gpu::Matrix<float> row(const gpu::Buffer& buffer) {
    return buffer.tensor<float>(0, 0, 64, 64).matrix(0, 0, 0, static_cast<int>(buffer.bytes() / 256));
}

/// Threads hand values to each other through global memory.
void exchange(gpu::Matrix<float> m, bool barrier) {
    m(0, threadIdx.x) = static_cast<float>(threadIdx.x);
    if (barrier) gpu::bar_sync();
    m(1, threadIdx.x) = m(0, 63 - threadIdx.x);
}

struct Slots {
    gpu::SharedTile<float, 64, 4> slot[2];
};

/// Two slots filled by cp.async, each row read by another thread.
void two_slots(gpu::Matrix<const float> source, gpu::Matrix<float> out) {
    auto& shared = gpu::shared_memory<Slots>();
    const int own = threadIdx.x, other = 63 - threadIdx.x;
    const auto issue = [&](int tile) {
        gpu::cp_async_cg_16(shared.slot[tile % 2].address(own, 0), source, 4 * tile + own / 16, own % 16 * 4, 16);
        gpu::cp_async_commit_group();
    };
    float sum = 0;
    issue(0);
    for (int tile = 0; tile < 4; ++tile) {
        if (tile + 1 < 4) {
            issue(tile + 1);
            gpu::cp_async_wait_group<1>();
        } else {
            gpu::cp_async_wait_group<0>();
        }
        gpu::bar_sync();
        for (int column = 0; column < 4; ++column) sum += shared.slot[tile % 2](other, column);
        gpu::bar_sync();
    }
    out(blockIdx.x, threadIdx.x) = gpu::shfl_sync_bfly(sum, 1);
}

/// A copy reads what another thread writes meanwhile.
void overwritten_source(gpu::Matrix<const float> source, gpu::Matrix<float> same, bool barrier) {
    auto& shared = gpu::shared_memory<Slots>();
    if (threadIdx.x == 0) {
        gpu::cp_async_cg_16(shared.slot[0].address(0, 0), source, 0, 0, 16);
        gpu::cp_async_commit_group();
        gpu::cp_async_wait_group<0>();
    }
    if (barrier) gpu::bar_sync();
    if (threadIdx.x == 32) same(0, 0) = 1;
}

struct Bulk {
    gpu::SharedTile<float, 1, 64> row;
    gpu::SharedArray<gpu::Mbarrier, 1> barrier;
};

/// A bulk copy reads what another thread writes meanwhile.
void overwritten_bulk_source(gpu::Matrix<const float> source, gpu::Matrix<float> same, bool wait) {
    auto& shared = gpu::shared_memory<Bulk>();
    const std::uint32_t barrier = shared.barrier.address(0);
    if (threadIdx.x == 0) {
        gpu::mbarrier_init(barrier, 1);
        gpu::fence_mbarrier_init();
        gpu::mbarrier_arrive_expect_tx(barrier, 256);
        gpu::cp_async_bulk(shared.row.address(0, 0), source, 0, 0, 256, barrier);
    }
    gpu::bar_sync();
    if (threadIdx.x == 32 && wait) gpu::mbarrier_wait_parity(barrier, 0);
    if (threadIdx.x == 32) same(0, 0) = 1;
    gpu::mbarrier_wait_parity(barrier, 0);
}

/// An addition has been read, not carried out, when its thread looks at the sum.
void early_look(gpu::Matrix<float> sums, bool wait) {
    auto& shared = gpu::shared_memory<Bulk>();
    if (threadIdx.x != 0) return;
    shared.row.store(0, 0, gpu::Vector<float, 4>{1, 1, 1, 1});
    gpu::fence_proxy_async();
    gpu::cp_reduce_async_bulk_add(sums, 0, 0, shared.row.address(0, 0), 16);
    gpu::cp_async_bulk_commit_group();
    if (wait) {
        gpu::cp_async_bulk_wait_group<0>();
    } else {
        gpu::cp_async_bulk_wait_group_read<0>();
    }
    sums(0, 4) = float{sums(0, 0)};
}

void add(gpu::Matrix<float> m) { gpu::red_global_add_f32(m, 0, 0, 1); }

TEST(Race, CorrectKernelsAreCleanTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        gpu::Buffer source("source", 16 * 256), out("out", 3 * 256);
        std::vector<float> values(16 * 64, 1.0f);
        source.write(values.data(), source.bytes());
        const auto rows = gpu::read_only(source.tensor<float>(0, 0, 64, 64)).matrix(0, 0, 0, 16);
        EXPECT_EQ(report_of(1, 64, 0, exchange, row(out), true), "");
        EXPECT_EQ(report_of(3, 64, sizeof(Slots), two_slots, rows, row(out)), "");
        EXPECT_EQ(report_of(1, 64, sizeof(Slots), overwritten_source, rows, row(source), true), "");
        EXPECT_EQ(report_of(1, 64, sizeof(Bulk), overwritten_bulk_source, rows, row(source), true), "");
        EXPECT_EQ(report_of(1, 64, sizeof(Bulk), early_look, row(out), true), "");
        out.write(values.data(), 256);
        EXPECT_EQ(report_of(2, 64, 0, add, row(out)), "");
        float sum;
        out.read(&sum, 4);
        EXPECT_EQ(sum, 129);
    }
}

#if GPU_TSAN

TEST(RaceDeathTest, RacesAreReportedTiny) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const auto run = [](auto kernel, std::size_t shared_bytes, auto... arguments) {
        report_of(1, 64, shared_bytes, kernel, arguments...);
        std::exit(0);  // ThreadSanitizer makes it 66 if it has reported something
    };
    gpu::Buffer source("source", 256), out("out", 3 * 256);
    std::vector<float> values(64, 1.0f);
    source.write(values.data(), source.bytes());
    const auto rows = gpu::read_only(source.tensor<float>(0, 0, 64, 64)).matrix(0, 0, 0, 1);
    EXPECT_EXIT(run(exchange, 0, row(out), false), testing::ExitedWithCode(66), "data race");
    EXPECT_EXIT(run(overwritten_source, sizeof(Slots), rows, row(source), false), testing::ExitedWithCode(66),
                "data race");
    EXPECT_EXIT(run(overwritten_bulk_source, sizeof(Bulk), rows, row(source), false), testing::ExitedWithCode(66),
                "data race");
    EXPECT_EXIT(run(early_look, sizeof(Bulk), row(out), false), testing::ExitedWithCode(66), "data race");
}

#endif

}  // namespace
