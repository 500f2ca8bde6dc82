// mma.sync: the lanes' registers are put together to matrices, multiplied, and taken apart again.
#include "common/gpu/emulator/region.h"
#include "common/gpu/emulator/rendezvous.h"
#include "common/gpu/emulator/tensor_core.h"

namespace emulator {

namespace {

constexpr WarpInstruction mma_bf16{"mma.sync.m16n8k16 (bf16)", true, false};
constexpr WarpInstruction mma_fp16{"mma.sync.m16n8k16 (f16)", true, false};

struct Operands {
    float* d;
    const std::uint32_t* a;
    std::uint32_t b[2];
};

void multiply(Meeting& meeting, bool bf16) {
    std::uint16_t A[mma_m][mma_k], B[mma_k][mma_n];
    float D[mma_m][mma_n];
    for (int lane = 0; lane < warp_size; ++lane) {
        const Operands& own = *static_cast<Operands*>(meeting.operands[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int j = 0; j < 4; ++j)
            for (int half = 0; half < 2; ++half)
                A[g + 8 * (j % 2)][2 * t + 8 * (j / 2) + half] = static_cast<std::uint16_t>(own.a[j] >> 16 * half);
        for (int j = 0; j < 2; ++j)
            for (int half = 0; half < 2; ++half)
                B[2 * t + 8 * j + half][g] = static_cast<std::uint16_t>(own.b[j] >> 16 * half);
        for (int j = 0; j < 4; ++j) D[g + 8 * (j / 2)][2 * t + j % 2] = own.d[j];
    }
    multiply_accumulate(bf16, A, B, D);
    for (int lane = 0; lane < warp_size; ++lane) {
        const Operands& own = *static_cast<Operands*>(meeting.operands[lane]);
        for (int j = 0; j < 4; ++j) own.d[j] = D[lane / 4 + 8 * (j / 2)][2 * (lane % 4) + j % 2];
    }
    totals.mma_flops += 2 * mma_m * mma_n * mma_k;
}

}  // namespace

void mma_m16n8k16(bool bf16, float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Operands operands{d, a, {b0, b1}};
    meet(bf16 ? mma_bf16 : mma_fp16, 0xFFFFFFFFu, &operands, site,
         [](Cta&, Meeting& meeting) { multiply(meeting, meeting.instruction == &mma_bf16); });
}

}  // namespace emulator
