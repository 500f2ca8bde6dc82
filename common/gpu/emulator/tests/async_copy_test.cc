// cp.async: what arrives and when, and each way of using a copy before it is there.
#include <numeric>
#include <vector>

#include "common/gpu/emulator/tests/reports.h"

namespace {

using emulator::Schedule;
using testing::HasSubstr;

constexpr int threads = 64;

struct Slots {
    gpu::SharedTile<float, threads, 4> slot[2];  // one row of 16 bytes a thread
};

struct Source {
    gpu::Buffer buffer{"source", 8 * threads * 16};
    Source() {
        std::vector<float> values(8 * threads * 4);
        std::iota(values.begin(), values.end(), 1.0f);
        buffer.write(values.data(), buffer.bytes());
    }
    gpu::Matrix<const float> rows() const {
        return buffer.tensor<const float>(0, 0, 4, 4).matrix(0, 0, 0, 8 * threads);
    }
    gpu::Matrix<float> writable() const { return buffer.tensor<float>(0, 0, 4, 4).matrix(0, 0, 0, 8 * threads); }
};

// What a kernel leaves out.
struct Without {
    bool wait = false, barrier = false, last_barrier = false;
    int pending = 1;  // groups still under way after the wait, in the steady state
};

/// Eight tiles through two slots; thread t sums a row that another thread copied.
void two_slots(gpu::Matrix<const float> source, float* sums, Without without) {
    auto& shared = gpu::shared_memory<Slots>();
    const int row = threadIdx.x, other = (threadIdx.x + 33) % threads;
    const auto issue = [&](int tile) {
        gpu::cp_async_cg_16(shared.slot[tile % 2].address(row, 0), source, tile * threads + row, 0, 16);
        gpu::cp_async_commit_group();
    };
    float sum = 0;
    issue(0);
    for (int tile = 0; tile < 8; ++tile) {
        if (tile + 1 < 8) {
            issue(tile + 1);
            if (!without.wait) {
                if (without.pending == 1) gpu::cp_async_wait_group<1>();
                if (without.pending == 2) gpu::cp_async_wait_group<2>();
            }
        } else if (!without.wait) {
            gpu::cp_async_wait_group<0>();
        }
        if (!without.barrier) gpu::bar_sync();
        for (int column = 0; column < 4; ++column) sum += shared.slot[tile % 2](other, column);
        if (!without.last_barrier) gpu::bar_sync();
    }
    sums[threadIdx.x] = sum;
}

TEST(AsyncCopy, TwoSlotsTiny) {
    Source source;
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        float sums[threads];
        gpu::reset_counters();
        ASSERT_EQ(report_of(1, threads, sizeof(Slots), two_slots, source.rows(), sums, Without{}), "");
        for (int t = 0; t < threads; ++t) {
            float expected = 0;
            for (int tile = 0; tile < 8; ++tile)
                for (int column = 0; column < 4; ++column)
                    expected += (tile * threads + (t + 33) % threads) * 4 + column + 1;
            EXPECT_EQ(sums[t], expected);
        }
        EXPECT_EQ(gpu::counters()->tensors[0].requested_read, 8u * threads * 16);
        EXPECT_EQ(gpu::counters()->tensors[0].distinct_read, 8u * threads * 16);
    }
}

TEST(AsyncCopy, EachDeletionIsReportedTiny) {
    Source source;
    float sums[threads];
    const int all = static_cast<int>(emulator::standard_schedules().size());
    const auto reports = [&](const char* words, Without without) {
        return schedules_that_report(words, threads, sizeof(Slots), two_slots, source.rows(), sums, without);
    };
    EXPECT_EQ(reports("in flight", {.wait = true}), all);
    EXPECT_EQ(reports("in flight", {.pending = 2}), all);
    EXPECT_EQ(reports("", {.barrier = true}), all);
    EXPECT_EQ(reports("", {.last_barrier = true}), all);
}

void read_in_flight(gpu::Matrix<const float> source, float* sink) {
    auto& shared = gpu::shared_memory<Slots>();
    gpu::cp_async_cg_16(shared.slot[0].address(0, 0), source, 0, 0, 16);
    *sink = shared.slot[0](0, 1);
}
void write_in_flight(gpu::Matrix<const float> source) {
    auto& shared = gpu::shared_memory<Slots>();
    gpu::cp_async_cg_16(shared.slot[0].address(0, 0), source, 0, 0, 16);
    shared.slot[0](0, 3) = 1;
}
void copy_onto_copy(gpu::Matrix<const float> source) {
    auto& shared = gpu::shared_memory<Slots>();
    gpu::cp_async_cg_16(shared.slot[0].address(0, 0), source, 0, 0, 16);
    gpu::cp_async_cg_16(shared.slot[0].address(0, 0), source, 1, 0, 16);
}

TEST(AsyncCopy, UsedInFlightTiny) {
    Source source;
    float sink;
    const int all = static_cast<int>(emulator::standard_schedules().size());
    EXPECT_EQ(schedules_that_report(
                  "read of 4 bytes at shared memory offset 4: the bytes are the destination of a cp.async in "
                  "flight, issued by thread 0 (warp 0, lane 0) at",
                  1, sizeof(Slots), read_in_flight, source.rows(), &sink),
              all);
    EXPECT_EQ(schedules_that_report("write of 4 bytes at shared memory offset 12", 1, sizeof(Slots), write_in_flight,
                                    source.rows()),
              all);
    EXPECT_EQ(schedules_that_report("cp.async of 16 bytes at shared memory offset 0: the bytes are the destination", 1,
                                    sizeof(Slots), copy_onto_copy, source.rows()),
              all);
}

/// The wait covers only the first of two groups.
void wait_too_little(gpu::Matrix<const float> source, float* sink) {
    auto& shared = gpu::shared_memory<Slots>();
    for (int slot = 0; slot < 2; ++slot) {
        gpu::cp_async_cg_16(shared.slot[slot].address(0, 0), source, slot, 0, 16);
        gpu::cp_async_commit_group();
    }
    gpu::cp_async_wait_group<1>();
    sink[0] = shared.slot[0](0, 0);  // covered
    sink[1] = shared.slot[1](0, 0);  // not
}
/// A copy that was issued but not committed belongs to no group.
void forget_commit(gpu::Matrix<const float> source, float* sink) {
    auto& shared = gpu::shared_memory<Slots>();
    gpu::cp_async_cg_16(shared.slot[0].address(0, 0), source, 0, 0, 16);
    gpu::cp_async_wait_group<0>();
    *sink = shared.slot[0](0, 0);
}

TEST(AsyncCopy, WaitsCoverExactlyTheirGroupsTiny) {
    Source source;
    float sink[2] = {};
    const int all = static_cast<int>(emulator::standard_schedules().size());
    EXPECT_EQ(schedules_that_report("offset 1024", 1, sizeof(Slots), wait_too_little, source.rows(), sink), all);
    EXPECT_EQ(sink[0], 1);
    EXPECT_EQ(schedules_that_report("in flight", 1, sizeof(Slots), forget_commit, source.rows(), sink), all);
}

void exit_in_flight(gpu::Matrix<const float> source, bool commit) {
    auto& shared = gpu::shared_memory<Slots>();
    gpu::cp_async_cg_16(shared.slot[0].address(0, 0), source, 0, 0, 16);
    if (commit) gpu::cp_async_commit_group();
}

TEST(AsyncCopy, UnderWayAtExitTiny) {
    Source source;
    for (const bool commit : {false, true})
        EXPECT_THAT(report_of(1, 1, sizeof(Slots), exit_in_flight, source.rows(), commit),
                    HasSubstr("the thread exits with 1 cp.async copies under way"));
}

/// The source changes between issue and wait: what arrives depends on when the copy reads it.
void overwrite_source(gpu::Matrix<const float> source, gpu::Matrix<float> same, float* sink) {
    auto& shared = gpu::shared_memory<Slots>();
    gpu::cp_async_cg_16(shared.slot[0].address(0, 0), source, 0, 0, 16);
    gpu::cp_async_commit_group();
    same(0, 0) = -1;
    gpu::cp_async_wait_group<0>();
    *sink = shared.slot[0](0, 0);
}

TEST(AsyncCopy, ReadsItsSourceEarlyOrLateTiny) {
    for (const auto& [schedule, expected] :
         std::vector<std::pair<Schedule, float>>{{Schedule::async_earliest, 1.0f}, {Schedule::async_latest, -1.0f}}) {
        Source source;
        ScopedOptions scoped(schedule);
        float sink = 0;
        ASSERT_EQ(report_of(1, 1, sizeof(Slots), overwrite_source, source.rows(), source.writable(), &sink), "");
        EXPECT_EQ(sink, expected);
    }
    bool early = false, late = false;
    for (int seed = 1; seed <= 40; ++seed) {
        Source source;
        ScopedOptions scoped(Schedule::random, seed);
        float sink = 0;
        ASSERT_EQ(report_of(1, 1, sizeof(Slots), overwrite_source, source.rows(), source.writable(), &sink), "");
        (sink == 1 ? early : late) = true;
    }
    EXPECT_TRUE(early);
    EXPECT_TRUE(late);
}

void partial(gpu::Matrix<const float> source, int row, int bytes, float* out) {
    auto& shared = gpu::shared_memory<Slots>();
    gpu::cp_async_cg_16(shared.slot[0].address(0, 0), source, row, 0, bytes);
    gpu::cp_async_commit_group();
    gpu::cp_async_wait_group<0>();
    for (int column = 0; column < 4; ++column) out[column] = shared.slot[0](0, column);
}

TEST(AsyncCopy, RestIsZeroTiny) {
    Source source;
    float out[4];
    gpu::reset_counters();
    ASSERT_EQ(report_of(1, 1, sizeof(Slots), partial, source.rows(), 2, 8, out), "");
    EXPECT_THAT(out, testing::ElementsAre(9, 10, 0, 0));
    ASSERT_EQ(report_of(1, 1, sizeof(Slots), partial, source.rows(), 100000, 0, out), "");
    EXPECT_THAT(out, testing::ElementsAre(0, 0, 0, 0));
    EXPECT_EQ(gpu::counters()->tensors[0].requested_read, 8u);
    EXPECT_THAT(report_of(1, 1, sizeof(Slots), partial, source.rows(), 8 * threads, 16, out),
                HasSubstr("out of bounds"));
}

void raw_copy(std::uint32_t shift, const char* source, const emulator::Region* region, int bytes_read) {
    auto& shared = gpu::shared_memory<Slots>();
    const auto site = emulator::Site::current();
    emulator::cp_async(shared.slot[0].address(0, 0) + shift, source, region, 16, bytes_read, site);
    emulator::cp_async_commit_group(site);
    emulator::cp_async_wait_group(0, site);
}

TEST(AsyncCopy, OperandsTiny) {
    Source source;
    const auto* data = static_cast<const char*>(source.buffer.data());
    const emulator::Region* region = source.rows().region;
    const auto report = [&](std::uint32_t shift, std::ptrdiff_t offset, int bytes) {
        return report_of(1, 1, sizeof(Slots), raw_copy, shift, data + offset, region, bytes);
    };
    EXPECT_EQ(report(0, 0, 16), "");
    EXPECT_THAT(report(8, 0, 16), HasSubstr("cp.async: the destination"));
    EXPECT_THAT(report(0, 8, 16), HasSubstr("cp.async: the source is not a multiple of 16"));
    EXPECT_THAT(report(0, 0, 17), HasSubstr("17 bytes to read, allowed are 0 to 16"));
    EXPECT_THAT(report(sizeof(Slots), 0, 16), HasSubstr("outside the CTA's shared memory"));
    EXPECT_THAT(report(0, 8 * threads * 16, 16), HasSubstr("of \"source\", which has 8192 bytes"));
}

}  // namespace
