// What this GPU's units reach at most: the roof under which every kernel is measured. Each is a kernel that does one
// thing with all its operands where they are fastest, on random values, long enough that the clock settles under the
// load.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace profile {

struct Ceiling {
    std::string name;    // "copy", "mma.sync bf16", "wgmma bf16", "wgmma e4m3", "tcgen05 bf16", "tcgen05 e4m3",
                         // "ex2 MUFU", "ex2 polynomial", "ex2 mixed"
    std::string unit;    // "B/s", "FLOP/s" or "exp/s"
    double per_second;   // in that unit
    std::string source;  // "measured", or "table: " and who states it
};

/// All ceilings of the current GPU, in about two seconds. Empty on the emulator, which has no clock. What this build
/// has no code for is taken from common/profile/machines.h, if the GPU is there.
std::vector<Ceiling> ceilings();

/// FLOP/s of mma.sync.m16n8k16 (bf16, fp32 sums) with all operands in registers. nullopt on the emulator, and on a GPU
/// older than 8.0, which has no such instruction.
std::optional<double> mma_sync_ceiling();

/// FLOP/s of wgmma.m64n256 (bf16 or e4m3, fp32 sums) with both operands in shared memory. nullopt on anything but a GPU
/// of compute capability 9.0.
std::optional<double> wgmma_ceiling(bool e4m3);

/// Bytes a second of a copy from and to global memory, read and written, over buffers that no L2 holds. nullopt on the
/// emulator.
std::optional<double> copy_ceiling();

/// Exponentials a second of which `polynomial` in every 4 are computed on the FMA pipes and the others by MUFU (0, 1
/// or 4). nullopt on the emulator.
std::optional<double> exponential_ceiling(int polynomial);

/// The one of that name; null if there is none.
const Ceiling* find(const std::vector<Ceiling>& ceilings, const std::string& name);

}  // namespace profile
