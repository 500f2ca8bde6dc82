// What warpgroups do besides products: registers that change hands, the elected lane, stmatrix, and named barriers between warpgroups.
#include <array>
#include <vector>

#include "common/gpu/emulator/tests/reports.h"

namespace {

using testing::HasSubstr;

const int all = static_cast<int>(emulator::standard_schedules().size());

// ---- elect.sync ----

void elect(int* elected) {
    if (gpu::elect_sync()) ++elected[gpu::warp_id()];
    if (gpu::elect_sync() && gpu::lane_id() == 0) ++elected[gpu::warp_id()];
}

TEST(Warpgroup, OneLaneIsElectedTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        std::array<int, 3> elected{};
        ASSERT_EQ(report_of(1, 96, 0, elect, elected.data()), "");
        EXPECT_THAT(elected, testing::Each(2));
    }
    std::array<int, 1> elected{};
    EXPECT_THAT(report_of(1, 16, 0, elect, elected.data()), HasSubstr("elect.sync needs lanes 16-31 of warp 0"));
}

// ---- setmaxnreg ----

/// One producer and two consumers, as kernels with 168 registers at launch use it.
void producer_and_consumers(int* order) {
    if (gpu::warpgroup_id() == 2) {
        gpu::setmaxnreg_dec<24>();
        if (threadIdx.x % 128 == 0) *order = *order * 10 + 1;
    } else {
        gpu::setmaxnreg_inc<240>();
    }
}

void inc_too_much(int) {
    if (gpu::warpgroup_id() == 0) {
        gpu::setmaxnreg_dec<40>();
    } else {
        gpu::setmaxnreg_inc<240>();
    }
}

void inc_without_dec(int) {
    if (gpu::warpgroup_id() == 0) gpu::setmaxnreg_inc<200>();
    if (gpu::warpgroup_id() == 1) gpu::barrier_sync(1, 256);
    if (gpu::warpgroup_id() == 0) gpu::barrier_sync(1, 256);
}

void wrong_way(int kind) {
    if (kind == 0) gpu::setmaxnreg_inc<40>();
    if (kind == 1) gpu::setmaxnreg_dec<240>();
    if (kind == 2) emulator::setmaxnreg(36, false, emulator::Site::current());
    if (kind == 3) emulator::setmaxnreg(16, false, emulator::Site::current());
    if (kind == 4) emulator::setmaxnreg(threadIdx.x == 100 ? 40 : 48, false, emulator::Site::current());
    if (kind == 5 && gpu::warp_id() != 1) gpu::setmaxnreg_dec<40>();
    if (kind == 6 || kind == 7) gpu::setmaxnreg_dec<96>();
    if (kind == 7) gpu::bar_sync();
    if (kind == 6 || kind == 7) gpu::setmaxnreg_dec<80>();
}

std::string report_with_registers(int threads, int registers, void (*kernel)(int), int argument = 0) {
    try {
        gpu::LaunchShape shape{"kernel_under_test", 1, threads, 0};
        shape.registers = registers;
        gpu::launch(shape, kernel, argument);
    } catch (const gpu::Error& error) {
        return error.what();
    }
    return "";
}

TEST(Warpgroup, RegistersChangeHandsTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        int order = 0;
        ASSERT_EQ(report_of(1, 384, 0, producer_and_consumers, &order), "");
        EXPECT_EQ(order, 1);
    }
}

TEST(Warpgroup, RegistersThatAreNotThereTiny) {
    // 3 x 168 are 504 for 40 + 240 + 240.
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        EXPECT_THAT(report_with_registers(384, 0, inc_too_much),
                    testing::AnyOf(HasSubstr("it would wait for ever"),
                                   AllOf(HasSubstr("deadlock"), HasSubstr("wait for setmaxnreg.inc"),
                                         HasSubstr("registers are free"))));
        // The other warpgroup could give some back, but does not.
        EXPECT_THAT(report_with_registers(256, 168, inc_without_dec),
                    AllOf(HasSubstr("deadlock"), HasSubstr("threads 0-127 wait for setmaxnreg.inc"),
                          HasSubstr(": 0 registers are free")));
    }
    EXPECT_THAT(report_with_registers(128, 168, inc_without_dec),
                HasSubstr("setmaxnreg.inc to 200: it would wait for ever: the threads have 168 registers each"));
    EXPECT_THAT(report_with_registers(128, 168, wrong_way, 0),
                HasSubstr("setmaxnreg.inc to 40: the threads have 168 registers each; inc never makes them fewer"));
    EXPECT_THAT(report_with_registers(128, 168, wrong_way, 1), HasSubstr("dec never makes them more"));
    EXPECT_THAT(report_with_registers(128, 168, wrong_way, 2), HasSubstr("it is a multiple of 8 from 24 to 256"));
    EXPECT_THAT(report_with_registers(128, 168, wrong_way, 3), HasSubstr("it is a multiple of 8 from 24 to 256"));
    EXPECT_THAT(report_with_registers(128, 168, wrong_way, 4), HasSubstr("of the same warpgroup asks for"));
    EXPECT_THAT(report_with_registers(128, 168, wrong_way, 5), HasSubstr("exit"));
    EXPECT_THAT(report_with_registers(128, 168, wrong_way, 6), HasSubstr("since its last setmaxnreg"));
    EXPECT_EQ(report_with_registers(128, 168, wrong_way, 7), "");
    EXPECT_THAT(report_with_registers(96, 168, wrong_way, 0), HasSubstr("needs a whole warpgroup"));
}

// ---- stmatrix ----

struct Matrices {
    gpu::SharedTile<std::uint16_t, 64, 16> rows;
};

enum class Store { right, misaligned, same_row, no_barrier };

/// Stores four matrices of distinct elements to rows in a scattered order, and counts for each lane what is where the lane map says.
void store_matrices(Store kind, int* right) {
    auto& rows = gpu::shared_memory<Matrices>().rows;
    const int lane = gpu::lane_id();
    const auto row_of = [&](int matrix, int i) { return (matrix * 8 + i) * 29 % 64; };
    std::uint32_t r[4];
    for (int matrix = 0; matrix < 4; ++matrix) {
        const std::uint32_t low = matrix * 64 + lane / 4 * 8 + 2 * (lane % 4);
        r[matrix] = low | (low + 1) << 16;
    }
    const int row = kind == Store::same_row && lane == 9 ? row_of(1, 0) : row_of(lane / 8, lane % 8);
    gpu::stmatrix_x4(rows.address(row, 8) + (kind == Store::misaligned && lane == 3 ? 8 : 0), r);
    if (kind == Store::no_barrier) {
        const std::uint16_t other = rows(row_of(lane / 8, (lane + 1) % 8), 8);
        right[lane] += other;
        return;
    }
    gpu::bar_warp_sync(gpu::all_lanes);
    for (int column = 0; column < 8; ++column) {
        const std::uint16_t element = rows(row_of(lane / 8, lane % 8), 8 + column);
        right[lane] += element == lane / 8 * 64 + lane % 8 * 8 + column;
    }
}

TEST(Warpgroup, MatricesAreStoredTiny) {
    std::array<int, 32> right{};
    const auto reports = [&](const char* words, Store kind) {
        return schedules_that_report(words, 32, sizeof(Matrices), store_matrices, kind, right.data());
    };
    gpu::reset_counters();
    EXPECT_EQ(reports("", Store::right), 0);
    EXPECT_THAT(right, testing::Each(8 * all));
    EXPECT_EQ(gpu::counters()->shared_written, 512u * all);
    EXPECT_EQ(reports("is not a multiple of 16", Store::misaligned), all);
    EXPECT_EQ(reports("wrote there too and no barrier lies between", Store::same_row), all);
    EXPECT_EQ(reports("wrote there and no barrier lies between", Store::no_barrier), all);
}

// ---- named barriers between warpgroups ----

struct PingPong {
    gpu::SharedArray<int, 1> turns;
};

/// Two warpgroups take turns: each waits at its own barrier and then lets the other go on.
void ping_pong(int rounds, bool forget, std::vector<int>* order) {
    auto& turns = gpu::shared_memory<PingPong>().turns;
    const int own = gpu::warpgroup_id(), other = 1 - own;
    if (threadIdx.x == 128) turns(0) = 0;
    if (own == 1) gpu::barrier_arrive(1, 256);  // the first turn is that of warpgroup 0
    for (int round = 0; round < rounds; ++round) {
        gpu::barrier_sync(1 + own, 256);
        if (threadIdx.x % 128 == 0) {
            order->push_back(2 * turns(0) + own);
            turns(0) = turns(0) + 1;
        }
        if (round + 1 == rounds && own == 1) break;
        if (forget && round == 1 && own == 0) continue;
        gpu::barrier_arrive(1 + other, 256);
    }
}

TEST(Warpgroup, PingPongTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        std::vector<int> order;
        ASSERT_EQ(report_of(1, 256, sizeof(PingPong), ping_pong, 4, false, &order), "");
        EXPECT_THAT(order, testing::ElementsAre(0, 3, 4, 7, 8, 11, 12, 15));
        EXPECT_THAT(
            report_of(1, 256, sizeof(PingPong), ping_pong, 4, true, &order),
            AllOf(HasSubstr("deadlock"), HasSubstr("threads 0-127 wait for barrier.sync 1"),
                  HasSubstr("threads 128-255 wait for barrier.sync 2"), HasSubstr("128 of 256 threads have arrived")));
    }
}

}  // namespace
