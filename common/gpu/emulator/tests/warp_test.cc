// Warp instructions: what each lane gets, and every way of not meeting.
#include <bit>
#include <random>

#include "common/gpu/emulator/tests/reports.h"

namespace {

using testing::HasSubstr;

// ---- shuffles and votes ----

void shuffles(float* results) {
    float* own = results + 4 * threadIdx.x;
    const float value = 100 + threadIdx.x;
    own[0] = gpu::shfl_sync_bfly(value, 1);
    own[1] = gpu::shfl_sync_bfly(value, 16);
    own[2] = gpu::shfl_sync_idx(value, 7);
    own[3] = gpu::shfl_sync_idx(value, gpu::lane_id() + 1);  // beyond 31: modulo 32
}

TEST(Warp, ShufflesTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        float results[64][4] = {};
        ASSERT_EQ(report_of(1, 64, 0, shuffles, &results[0][0]), "");
        for (int thread = 0; thread < 64; ++thread) {
            const int warp = thread / 32 * 32, lane = thread % 32;
            EXPECT_EQ(results[thread][0], 100 + warp + (lane % 2 == 0 ? lane + 1 : lane - 1));
            EXPECT_EQ(results[thread][1], 100 + warp + (lane < 16 ? lane + 16 : lane - 16));
            EXPECT_EQ(results[thread][2], 100 + warp + 7);
            EXPECT_EQ(results[thread][3], 100 + warp + (lane == 31 ? 0 : lane + 1));
        }
    }
}

void votes(std::uint32_t* results) {
    std::uint32_t* own = results + 5 * threadIdx.x;
    own[0] = gpu::vote_sync_ballot(gpu::lane_id() % 3 == 0);
    own[1] = gpu::vote_sync_any(gpu::lane_id() == 31);
    own[2] = gpu::vote_sync_any(false);
    own[3] = gpu::vote_sync_all(true);
    own[4] = gpu::vote_sync_all(gpu::lane_id() != 5);
}

TEST(Warp, VotesTiny) {
    std::uint32_t results[32][5];
    ASSERT_EQ(report_of(1, 32, 0, votes, &results[0][0]), "");
    for (const auto& own : results) {
        EXPECT_EQ(own[0], 0b01001001001001001001001001001001u);
        EXPECT_EQ(own[1], 1u);
        EXPECT_EQ(own[2], 0u);
        EXPECT_EQ(own[3], 1u);
        EXPECT_EQ(own[4], 0u);
    }
}

// ---- ldmatrix, against the map from (row, column) to (lane, register) ----

struct Block {
    gpu::SharedTile<gpu::bf16, 32, 8> tile;  // four 8x8 matrices, one below the other
};

void load_matrices(std::uint32_t* results, bool transposed) {
    auto& shared = gpu::shared_memory<Block>();
    for (int i = threadIdx.x; i < 256; i += 32) shared.tile(i / 8, i % 8) = gpu::bf16{static_cast<std::uint16_t>(i)};
    gpu::bar_warp_sync(gpu::all_lanes);
    std::uint32_t r[4];
    if (transposed) {
        gpu::ldmatrix_x4_trans(r, shared.tile.address(gpu::lane_id(), 0));
    } else {
        gpu::ldmatrix_x4(r, shared.tile.address(gpu::lane_id(), 0));
    }
    for (int i = 0; i < 4; ++i) results[4 * gpu::lane_id() + i] = r[i];
}

TEST(Warp, LdmatrixTiny) {
    for (const auto& options : emulator::standard_schedules())
        for (const bool transposed : {false, true}) {
            ScopedOptions scoped(options);
            std::uint32_t results[32][4];
            ASSERT_EQ(report_of(1, 32, sizeof(Block), load_matrices, &results[0][0], transposed), "");
            for (int matrix = 0; matrix < 4; ++matrix)
                for (int row = 0; row < 8; ++row)
                    for (int column = 0; column < 8; ++column) {
                        const int lane = transposed ? 4 * column + row / 2 : 4 * row + column / 2;
                        const int half = transposed ? row % 2 : column % 2;
                        EXPECT_EQ(results[lane][matrix] >> 16 * half & 0xFFFF, 64u * matrix + 8 * row + column);
                    }
        }
}

template <int columns, gpu::Swizzle swizzle>
struct Rows {
    gpu::SharedTile<gpu::bf16, 32, columns, swizzle> tile;
};

template <int columns, gpu::Swizzle swizzle>
void load_column() {
    auto& shared = gpu::shared_memory<Rows<columns, swizzle>>();
    for (int column = 0; column < 8; ++column) shared.tile(gpu::lane_id(), column) = gpu::bf16{0};
    gpu::bar_warp_sync(gpu::all_lanes);
    std::uint32_t r[4];
    gpu::ldmatrix_x4(r, shared.tile.address(gpu::lane_id(), 0));
}

TEST(Warp, LdmatrixBankConflictsTiny) {
    const auto conflicts = [](auto kernel, std::size_t bytes) {
        gpu::reset_counters();
        EXPECT_EQ(report_of(1, 32, bytes, kernel), "");
        return gpu::counters()->bank_conflicts;
    };
    using gpu::Swizzle;
    // Rows of 128 bytes: all eight rows of a phase in the same four banks, so seven extra cycles in each of four
    // phases.
    EXPECT_EQ(conflicts(load_column<64, Swizzle::none>, sizeof(Rows<64, Swizzle::none>)), 28u);
    EXPECT_EQ(conflicts(load_column<64, Swizzle::xor_8>, sizeof(Rows<64, Swizzle::xor_8>)), 0u);
    // Rows of 64 bytes: two groups of banks, four rows in each.
    EXPECT_EQ(conflicts(load_column<32, Swizzle::none>, sizeof(Rows<32, Swizzle::none>)), 12u);
    // A pad of 16 bytes moves each row on by one group.
    EXPECT_EQ(conflicts(load_column<72, Swizzle::none>, sizeof(Rows<72, Swizzle::none>)), 0u);
}

void load_misaligned() {
    auto& shared = gpu::shared_memory<Block>();
    std::uint32_t r[4];
    gpu::ldmatrix_x4(r, shared.tile.address(0, 4));
}

TEST(Warp, LdmatrixMisalignedTiny) {
    EXPECT_THAT(report_of(1, 32, sizeof(Block), load_misaligned), HasSubstr("is not a multiple of 16"));
}

void load_unwritten() {
    auto& shared = gpu::shared_memory<Block>();
    if (gpu::lane_id() != 9)
        for (int column = 0; column < 8; ++column) shared.tile(gpu::lane_id(), column) = gpu::bf16{0};
    gpu::bar_warp_sync(gpu::all_lanes);
    std::uint32_t r[4];
    gpu::ldmatrix_x4(r, shared.tile.address(gpu::lane_id(), 0));
}

TEST(Warp, LdmatrixOfUnwrittenRowTiny) {
    const std::string report = report_of(1, 32, sizeof(Block), load_unwritten);
    EXPECT_THAT(report, HasSubstr("ldmatrix of 16 bytes at shared memory offset 144: nobody has written there"));
    EXPECT_THAT(report, HasSubstr("lane 9"));
}

// ---- mma, against the map from (row, column) to (lane, register) ----

struct Fragments {
    std::uint32_t a[32][4], b[32][2];
    float d[32][4];
};

template <class T>
void multiply(Fragments* fragments) {
    const int lane = gpu::lane_id();
    const std::uint32_t(&b)[2] = fragments->b[lane];
    gpu::mma_sync_m16n8k16<T>(fragments->d[lane], fragments->a[lane], b[0], b[1]);
}

template <class T>
void test_mma() {
    std::mt19937 random(3);
    const auto small = [&] { return static_cast<float>(static_cast<int>(random() % 17) - 8); };
    float A[16][16], B[16][8], C[16][8];
    Fragments f = {};
    for (int m = 0; m < 16; ++m)
        for (int k = 0; k < 16; ++k) {
            A[m][k] = small();
            f.a[4 * (m % 8) + k % 8 / 2][m / 8 + 2 * (k / 8)] |= gpu::cvt_rn<T>(A[m][k]).bits << 16 * (k % 2);
        }
    for (int k = 0; k < 16; ++k)
        for (int n = 0; n < 8; ++n) {
            B[k][n] = small();
            f.b[4 * n + k % 8 / 2][k / 8] |= gpu::cvt_rn<T>(B[k][n]).bits << 16 * (k % 2);
        }
    for (int m = 0; m < 16; ++m)
        for (int n = 0; n < 8; ++n) f.d[4 * (m % 8) + n / 2][2 * (m / 8) + n % 2] = C[m][n] = small();
    gpu::reset_counters();
    ASSERT_EQ(report_of(1, 32, 0, multiply<T>, &f), "");
    EXPECT_EQ(gpu::counters()->mma_flops, 4096u);
    for (int m = 0; m < 16; ++m)
        for (int n = 0; n < 8; ++n) {
            float sum = C[m][n];
            for (int k = 0; k < 16; ++k) sum += A[m][k] * B[k][n];  // small integers: exact
            EXPECT_EQ(f.d[4 * (m % 8) + n / 2][2 * (m / 8) + n % 2], sum);
        }
}

TEST(Warp, MmaTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        test_mma<gpu::bf16>();
        test_mma<gpu::fp16>();
    }
}

// ---- rules of meeting ----

void missing_lane() {
    if (gpu::lane_id() < 31) gpu::vote_sync_ballot(true);
}

TEST(Warp, MissingLaneTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        const std::string report = report_of(1, 32, 0, missing_lane);
        EXPECT_THAT(report, testing::AnyOf(HasSubstr("needs lanes 31 of warp 0, which have exited"),
                                           HasSubstr("the thread exits while lanes")));
        EXPECT_THAT(report, HasSubstr("vote.sync.ballot"));
        EXPECT_THAT(report, HasSubstr("warp_test.cc"));
    }
}

void one_instruction_at_two_places(float* sink) {
    float d[4] = {};
    const std::uint32_t a[4] = {};
    if (gpu::lane_id() < 16) {
        gpu::mma_sync_m16n8k16<gpu::bf16>(d, a, 0, 0);
    } else {
        gpu::mma_sync_m16n8k16<gpu::bf16>(d, a, 0, 0);
    }
    sink[threadIdx.x] = d[0];
}

TEST(Warp, DivergenceAtAlignedInstructionTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        float sink[32];
        const std::string report = report_of(1, 32, 0, one_instruction_at_two_places, sink);
        EXPECT_THAT(report, HasSubstr("lanes of warp 0 diverged"));
        EXPECT_THAT(report, HasSubstr("each waits for the other"));
    }
}

void sync_from_two_places() {
    if (gpu::lane_id() < 16) {
        gpu::bar_warp_sync(gpu::all_lanes);
    } else {
        gpu::bar_warp_sync(gpu::all_lanes);
    }
}

TEST(Warp, SyncMayComeFromTwoPlacesTiny) { EXPECT_EQ(report_of(1, 32, 0, sync_from_two_places), ""); }

void two_instructions() {
    if (gpu::lane_id() < 16) {
        gpu::bar_warp_sync(gpu::all_lanes);
    } else {
        gpu::vote_sync_ballot(true);
    }
}

TEST(Warp, TwoInstructionsAtOnceTiny) {
    const std::string report = report_of(1, 32, 0, two_instructions);
    EXPECT_THAT(report, HasSubstr("lane 16 is at vote.sync.ballot"));
    EXPECT_THAT(report, HasSubstr("lanes 0-15 are at bar.warp.sync"));
}

void two_votes(float* sink) {
    if (gpu::lane_id() < 16) {
        sink[threadIdx.x] = gpu::vote_sync_any(true);
    } else {
        sink[threadIdx.x] = gpu::vote_sync_all(true);
    }
}

TEST(Warp, TwoVotesAtOnceTiny) {
    float sink[32];
    const std::string report = report_of(1, 32, 0, two_votes, sink);
    EXPECT_THAT(report, HasSubstr("lane 16 is at vote.sync.all"));
    EXPECT_THAT(report, HasSubstr("lanes 0-15 are at vote.sync.any"));
}

void halves() {
    const std::uint32_t own_half = gpu::lane_id() < 16 ? 0x0000FFFFu : 0xFFFF0000u;
    for (int i = 0; i < 3; ++i) gpu::bar_warp_sync(own_half);
}

TEST(Warp, HalvesMeetApartTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        EXPECT_EQ(report_of(1, 32, 0, halves), "");
    }
}

void foreign_mask() { gpu::bar_warp_sync(0x0000FFFFu); }

TEST(Warp, LaneOutsideItsMaskTiny) {
    const std::string report = report_of(1, 32, 0, foreign_mask);
    EXPECT_THAT(report, HasSubstr("the lane is not in the mask that it passes"));
    EXPECT_THAT(report, HasSubstr("lane 16"));
}

void whole_warp() { gpu::bar_warp_sync(gpu::all_lanes); }

TEST(Warp, PartialWarpTiny) {
    EXPECT_THAT(report_of(1, 48, 0, whole_warp),
                HasSubstr("needs lanes 16-31 of warp 1, but the CTA has only 48 threads"));
}

TEST(Warp, OutsideALaunchTiny) {
    EXPECT_THROW(gpu::bar_warp_sync(gpu::all_lanes), gpu::Error);
    EXPECT_THROW(gpu::bar_sync(), gpu::Error);
}

}  // namespace
