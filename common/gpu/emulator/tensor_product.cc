#include "common/gpu/emulator/tensor_product.h"

#include <cstdio>
#include <cstring>

#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/operand.h"

namespace emulator {

namespace {

constexpr int rows = 64;  // of D, computed at once

std::uint32_t field(std::uint32_t bits, int first, int n) { return bits >> first & ((1u << n) - 1); }

/// 64 rows of A, columns `first` ... `first` + n - 1 of D, and where these lie.
struct Strip {
    int row, first, n;
    int lane, column;
    bool spread;  // 16 rows in each quarter of the lanes

    int lane_of_row(int i) const { return lane + (spread ? i / 16 * 32 + i % 16 : i); }
};

/// D of one CTA: layout D, or A of a pair (m128 in each CTA), B (a pair, m64 in each), F (m64).
std::vector<Strip> strips(const TensorProduct& x, int m, int n) {
    const int lane = lane_of(x.d), column = column_of(x.d);
    if (m == x.ctas * tensor_lanes) return {{0, 0, n, 0, column, false}, {rows, 0, n, rows, column, false}};
    if (x.ctas == 2) return {{0, 0, n / 2, 0, column, false}, {0, n / 2, n / 2, rows, column, false}};
    return {{0, 0, n, lane, column, true}};
}

/// Sums that lie in tensor memory otherwise than as blocks.
void move_sums(TensorMemory& memory, const Strip& strip, float (*sums)[rows][mma_n], bool back) {
    for (int block = 0; block < strip.n / mma_n; ++block)
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < mma_n; ++j) {
                float& cell = *memory.cell(strip.lane_of_row(i), strip.column + block * mma_n + j);
                (back ? cell : sums[block][i][j]) = back ? sums[block][i][j] : cell;
            }
}

}  // namespace

TensorInstruction::TensorInstruction(std::uint32_t bits, int ctas, Site site)
    : bf16(field(bits, 7, 3) == 1),
      a_mn_major(field(bits, 15, 1) != 0),
      b_mn_major(field(bits, 16, 1) != 0),
      m(static_cast<int>(field(bits, 24, 5)) * 16),
      n(static_cast<int>(field(bits, 17, 6)) * 8) {
    const auto report = [&](const std::string& why) {
        char text[16];
        std::snprintf(text, sizeof(text), "0x%08X", bits);
        machine.report(std::string("tcgen05.mma: the instruction descriptor ") + text + why, site);
    };
    if ((bits & ~0x1F7F9FF0u) != 0 || field(bits, 6, 1) != 0)
        report(": bits 0 to 3, 6, 13, 14, 23 and 29 to 31 must be 0 (no sparsity, no saturation, no negation)");
    if (field(bits, 4, 2) != 1) report(": the type of D, bits 4 and 5, must be 1, fp32");
    if (field(bits, 7, 3) > 1 || field(bits, 10, 3) != field(bits, 7, 3))
        report(": the types of A and B, bits 7 to 9 and 10 to 12, must both be 0, fp16, or both 1, bf16");
    if (m != 64 * ctas && m != 128 * ctas)
        report(" is of M = " + std::to_string(m) + "; with cta_group::" + std::to_string(ctas) + " it is " +
               std::to_string(64 * ctas) + " or " + std::to_string(128 * ctas));
    const int step = 8 * ctas;
    if (n < step || n > 256 || n % step != 0)
        report(" is of N = " + std::to_string(n) + "; with cta_group::" + std::to_string(ctas) + " it is " +
               std::to_string(step) + ", " + std::to_string(2 * step) + ", ... 256");
}

Cells TensorInstruction::cells_of_d(const TensorProduct& x, Site site) const {
    const int lane = lane_of(x.d);
    const bool half = m == 64;
    if (lane != 0 && !(half && lane == 16))
        machine.report("tcgen05.mma of M = " + std::to_string(m) + " with D from lane " + std::to_string(lane) +
                           " on; it is 0" + (half ? " or 16" : ""),
                       site);
    return {half ? 0x55u << lane / 16 : 0xFFu, column_of(x.d), m == 64 * x.ctas && x.ctas == 2 ? n / 2 : n};
}

Cells TensorInstruction::cells_of_a(const TensorProduct& x, Site site) const {
    if (!x.a_in_tensor_memory) return {};
    if (a_mn_major)
        machine.report(
            "tcgen05.mma with A in tensor memory, and an instruction descriptor that says mn-major (bit 15); "
            "A is k-major there",
            site);
    if (x.ctas == 2 && m == 128)
        machine.report(
            "tcgen05.mma of a pair with M = 128 and A in tensor memory: its rows would have to be there twice, says "
            "CUTLASS alone; A "
            "comes from shared memory, or M is 256",
            site);
    if (lane_of(x.a) != lane_of(x.d))
        machine.report("tcgen05.mma with A from lane " + std::to_string(lane_of(x.a)) + " on and D from lane " +
                           std::to_string(lane_of(x.d)) + "; they lie in the same lanes",
                       site);
    return {cells_of_d(x, site).lanes, column_of(x.a), 2 * mma_k / 4};
}

TensorMma::TensorMma(Thread* issuer, Site site, const TensorProduct& operands, const TensorInstruction& instruction,
                     std::vector<Side> sides)
    : TensorOperation(tensor_mma, issuer, site, Kind::product,
                      operands.d | static_cast<std::uint32_t>(instruction.n / 8) << 23 |
                          static_cast<std::uint32_t>(instruction.m / 64) << 29),
      operands(operands),
      instruction(instruction),
      sides(std::move(sides)) {}

bool TensorMma::step() {
    finish_earlier();
    {
        EngineSpeaks engine(*this);
        for (const Side& side : sides)
            for (const auto* chunks : {&side.a, &side.b})
                for (const char* chunk : *chunks) tsan::read_range(chunk, chunk_bytes);
    }
    // Not on a fiber's stack; products are performed one at a time.
    static std::uint16_t a[tensor_lanes][mma_k], b[256 / mma_n][mma_k][mma_n];
    static float sums[256 / mma_n][rows][mma_n];
    int first = 0;
    for (const Side& side : sides) {
        read_operand(
            side.b, instruction.b_mn_major, [&](int n, int k) -> auto& {
                return b[(first + n) / mma_n][k][(first + n) % mma_n];
            });
        first += instruction.n / operands.ctas;
    }
    for (const Side& side : sides) {
        TensorMemory& memory = side.cta->tensor_memory;
        read_operand(
            side.a, instruction.a_mn_major, [&](int m, int k) -> auto& { return a[m][k]; });
        for (const Strip& strip : strips(operands, instruction.m, instruction.n)) {
            if (operands.a_in_tensor_memory)
                for (int i = 0; i < rows; ++i)
                    for (int k = 0; k < mma_k; k += 2)
                        std::memcpy(&a[strip.row + i][k],
                                    memory.cell(strip.lane_of_row(i), column_of(operands.a) + k / 2), 4);
            const bool in_place = !strip.spread && strip.column % mma_n == 0;
            auto* const d = in_place ? memory.sum_blocks(strip.lane, strip.column) : sums;
            if (!operands.accumulate) {
                std::memset(d, 0, sizeof(float) * rows * static_cast<std::size_t>(strip.n));
            } else if (!in_place) {
                move_sums(memory, strip, d, false);
            }
            multiply_accumulate_wide(instruction.bf16, reinterpret_cast<std::uint16_t(&)[rows][mma_k]>(a[strip.row]),
                                     b + strip.first / mma_n, d, strip.n);
            if (!in_place) move_sums(memory, strip, d, true);
        }
    }
    return true;
}

}  // namespace emulator
