// What this GPU's units reach at most, measured where the rungs are: the top of the roofline.
#pragma once

#include <optional>

namespace profile {

/// FLOP/s of mma.sync.m16n8k16 (bf16, fp32 sums) with all operands in registers: median of several launches that fill the GPU.
/// nullopt on the emulator, which has no clock, and on a GPU older than this build's oldest target.
std::optional<double> mma_sync_ceiling();

}  // namespace profile
