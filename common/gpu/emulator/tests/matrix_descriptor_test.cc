// Matrix descriptors: where the manual's canonical layouts put each element, from tables, against the emulator's formula; tiles
// against their descriptors; and what is refused.
#include "common/gpu/emulator/matrix_descriptor.h"

#include <map>
#include <tuple>
#include <vector>

#include "common/gpu/emulator/tests/reports.h"

namespace {

using emulator::MatrixDescriptor;
using emulator::MatrixReader;
using testing::HasSubstr;

std::uint64_t bits_of(std::uint32_t start, std::uint32_t leading, std::uint32_t stride, std::uint64_t base_offset,
                      std::uint64_t mode) {
    return start / 16 | std::uint64_t{leading / 16} << 16 | std::uint64_t{stride / 16} << 32 | base_offset << 49 |
           mode << 62;
}

/// The chunk to which the 128-byte swizzle moves chunk c of row r of an atom, as the manual draws it; the 64- and 32-byte ones
/// by row of 128 bytes.
constexpr int swizzle_128[8][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {2, 3, 0, 1, 6, 7, 4, 5},
                                   {3, 2, 1, 0, 7, 6, 5, 4}, {4, 5, 6, 7, 0, 1, 2, 3}, {5, 4, 7, 6, 1, 0, 3, 2},
                                   {6, 7, 4, 5, 2, 3, 0, 1}, {7, 6, 5, 4, 3, 2, 1, 0}};
constexpr int swizzle_64[4][8] = {
    {0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {2, 3, 0, 1, 6, 7, 4, 5}, {3, 2, 1, 0, 7, 6, 5, 4}};
constexpr int swizzle_32[2][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}};

std::uint32_t moved(int mode, std::uint32_t address, std::uint32_t base_offset) {
    const std::uint32_t line = address / 128, chunk = address / 16 % 8;
    const int r = static_cast<int>(line) - static_cast<int>(base_offset) + 8;
    const int to = mode == 1   ? swizzle_128[r % 8][chunk]
                   : mode == 2 ? swizzle_64[r % 4][chunk]
                   : mode == 3 ? swizzle_32[r % 2][chunk]
                               : static_cast<int>(chunk);
    return line * 128 + static_cast<std::uint32_t>(to) * 16 + address % 16;
}

/// A canonical layout as nested boxes: (how many along mn, how many along k, bytes from one to the next along each), inner ones first.
struct Level {
    int mn, k;
    std::uint32_t mn_bytes, k_bytes;
};

std::vector<Level> canonical(int mode, bool mn_major, std::uint32_t leading, std::uint32_t stride) {
    constexpr int many = 1 << 10;
    const int spans[] = {8, 64, 32, 16};  // elements of a row of the layout
    const int span = spans[mode];
    const auto row_bytes = static_cast<std::uint32_t>(2 * span);
    if (mode == 0)
        return mn_major ? std::vector<Level>{{8, 8, 2, 16}, {many, many, stride, leading}}
                        : std::vector<Level>{{8, 8, 16, 2}, {many, many, stride, leading}};
    return mn_major ? std::vector<Level>{{span, 8, 2, row_bytes}, {many, many, leading, stride}}
                    : std::vector<Level>{{8, 16, row_bytes, 2}, {many, 1, stride, 0}};
}

TEST(MatrixDescriptor, FormulaAndTableAgree) {
    int compared = 0;
    for (int mode = 0; mode < 4; ++mode)
        for (const bool mn_major : {false, true})
            for (const auto& [start, leading, stride, base_offset] :
                 std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>>{
                     {1024, 8192, 1024, 0},
                     {2048 + 32, 128, 256, 0},
                     {1024 + 3 * 128, 4096, 512, 3},
                     {5 * 128, 48, 1040, 5},
                     {16, 2064, 4096, 1},
                     {0, 128 * 7, 80, 7}}) {
                const MatrixDescriptor descriptor(bits_of(start, leading, stride, base_offset, mode), mn_major);
                EXPECT_TRUE(
                    MatrixDescriptor::fits(bits_of(start, leading, stride, base_offset, mode), MatrixReader::wgmma));
                for (int mn = 0; mn < 256; ++mn)
                    for (int k = 0; k < 16; ++k, ++compared) {
                        std::uint32_t place = start;
                        int i = mn, j = k;
                        for (const Level& level : canonical(mode, mn_major, leading, stride)) {
                            place += i % level.mn * level.mn_bytes + j % level.k * level.k_bytes;
                            i /= level.mn;
                            j /= level.k;
                        }
                        ASSERT_EQ(descriptor.address(mn, k), moved(mode, place, base_offset))
                            << "mode " << mode << (mn_major ? ", mn" : ", k") << "-major, element " << mn << ", " << k;
                    }
            }
    EXPECT_EQ(compared, 4 * 2 * 6 * 256 * 16);
}

/// PTX ISA, tcgen05, shared memory descriptor: swizzle in bits 61 to 63, version 1 in bits 46 to 48, no base offset here.
TEST(MatrixDescriptor, OfTcgen05Tiny) {
    constexpr std::uint64_t version = std::uint64_t{1} << 46;
    const std::uint32_t spans[8] = {16, 0, 128, 0, 64, 0, 32, 0};  // 1: atoms of 32 bytes, not here; 3, 5, 7: none
    for (std::uint64_t swizzle = 0; swizzle < 8; ++swizzle) {
        const std::uint64_t bits = bits_of(1024, 16, 1024, 0, 0) | version | swizzle << 61;
        EXPECT_EQ(MatrixDescriptor::fits(bits, MatrixReader::tcgen05), spans[swizzle] != 0) << swizzle;
        if (spans[swizzle] == 0) continue;
        EXPECT_EQ(MatrixDescriptor(bits, false).span, spans[swizzle]);
        for (int i = 0; i < 61; ++i) {
            const bool says_where = i < 14 || (i >= 16 && i < 30) || (i >= 32 && i < 46);
            EXPECT_EQ(MatrixDescriptor::fits(bits ^ std::uint64_t{1} << i, MatrixReader::tcgen05), says_where) << i;
        }
    }
}

// ---- PanelTile ----

using Tile = gpu::PanelTile<gpu::bf16, 96, 192>;
struct Layout {
    gpu::SharedArray<float, 64> in_front;
    Tile tile;
};

/// Every element of every operand that a tile can be: true if it is where the tile has it.
void compare_tile(int* right) {
    auto& tile = gpu::shared_memory<Layout>().tile;
    for (int k = 0; k < Tile::columns; k += 16)
        for (int row = 0; row < Tile::rows; row += 8) {
            const MatrixDescriptor descriptor(tile.k_major(row, k), false);
            for (int mn = 0; mn < Tile::rows - row; ++mn)
                for (int i = 0; i < 16; ++i) right[0] += descriptor.address(mn, i) == tile.address(row + mn, k + i);
        }
    for (int k = 0; k + 16 <= Tile::rows; k += 8)
        for (int column = 0; column < Tile::columns; column += 64) {
            const MatrixDescriptor descriptor(tile.mn_major(k, column), true);
            for (int mn = 0; mn < Tile::columns - column; ++mn)
                for (int i = 0; i < 16; ++i) right[1] += descriptor.address(mn, i) == tile.address(k + i, column + mn);
        }
}

TEST(MatrixDescriptor, PanelTileIsWhereItSaysTiny) {
    for (int seed = 1; seed <= 3; ++seed) {
        ScopedOptions scoped(emulator::Schedule::random, seed);
        int right[2] = {};
        ASSERT_EQ(report_of(1, 1, sizeof(Layout), compare_tile, right), "");
        EXPECT_EQ(right[0], 192 / 16 * 16 * (96 + 88 + 80 + 72 + 64 + 56 + 48 + 40 + 32 + 24 + 16 + 8));
        EXPECT_EQ(right[1], 11 * 16 * (192 + 128 + 64));
    }
}

// ---- what is refused ----

void use_descriptor(std::uint64_t bits, bool relative, bool mn_major) {
    auto& tile = gpu::shared_memory<gpu::PanelTile<gpu::bf16, 64, 64>>();
    for (int i = threadIdx.x; i < 64 * 64; i += 128) tile(i / 64, i % 64) = gpu::bf16{};
    gpu::fence_proxy_async();
    gpu::bar_sync();
    if (relative) bits += tile.address() / 16;
    float d[32] = {};
    gpu::wgmma_fence(d);
    if (mn_major) {
        gpu::wgmma_m64k16<gpu::bf16, gpu::Major::k, gpu::Major::mn>(d, tile.k_major(0, 0), bits, true);
    } else {
        gpu::wgmma_m64k16<gpu::bf16, gpu::Major::k, gpu::Major::k>(d, tile.k_major(0, 0), bits, true);
    }
    gpu::wgmma_commit_group();
    gpu::wgmma_wait_group<0>(d);
}

TEST(MatrixDescriptor, RefusalsTiny) {
    const auto report = [](std::uint64_t bits, bool mn_major = false) {
        return report_of(1, 128, 64 * 64 * 2, use_descriptor, bits, true, mn_major);
    };
    EXPECT_EQ(report(bits_of(0, 16, 1024, 0, 1)), "");
    EXPECT_EQ(report(bits_of(96, 16, 1024, 0, 1)), "");
    EXPECT_EQ(report(bits_of(0, 16, 1024, 0, 1), true), "");
    for (const int bit : {14, 15, 30, 31, 46, 47, 48, 52, 57, 61})
        EXPECT_THAT(report(bits_of(0, 16, 1024, 0, 1) | std::uint64_t{1} << bit),
                    HasSubstr("are reserved and must be 0"));
    EXPECT_THAT(report(bits_of(112, 16, 1024, 0, 1)),
                HasSubstr("it begins 112 bytes into a row of 128, and 16 elements "
                          "along k do not fit"));
    EXPECT_THAT(report(bits_of(32, 16, 1024, 0, 1), true), HasSubstr("64 elements along mn do not fit"));
    EXPECT_THAT(report(bits_of(1024, 16, 1024, 0, 1)), HasSubstr("outside the CTA's shared memory of 8192 bytes"));
    EXPECT_THAT(report(bits_of(0, 16, 2048, 0, 1)), HasSubstr("element (mn, k) = (32, 0) would lie at shared address"));
}

}  // namespace
