// Each primitive of common/gpu put to work on fixed operands, so that two machines can be compared word by word.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace probes {

/// What one primitive answered: `words` in cases of `case_words` each.
struct Probe {
    std::string name;
    std::vector<std::uint32_t> words = {};
    int case_words = 1;
    /// The first so many cases are recorded word by word, the others by a hash of each case: that keeps files small.
    std::size_t whole_cases = SIZE_MAX;
    /// What the primitive worked on, where a test derives the right answers from it.
    std::vector<std::uint32_t> operands = {};
    /// Approximate: word i is 2^x for the float x with the bits of operand i.
    bool exponential = false;
};

/// Runs every probe on the machine of this build. The operands come from an integer generator, so they are the same
/// everywhere. Throws gpu::Error if a launch fails.
std::vector<Probe> run_probes();

/// Operands and layout of the mma probes; a case is one warp instruction.
constexpr int mma_families = 10, mma_cases = 320 * mma_families, mma_whole_cases = 32 * mma_families;
enum MmaFamily {
    wide_exponents,
    narrow_exponents,
    subnormals,
    near_underflow,
    near_overflow,
    cancellation,
    zero_or_large_c,
    special_values,
    any_bits,
    small_integers
};
/// D = A B + C with A, B as bits of fp16 or bf16 and C as bits of fp32. Case i belongs to family i % mma_families.
struct MmaOperands {
    std::uint16_t a[16][16], b[16][8];
    std::uint32_t c[16][8];
};
MmaOperands mma_operands(bool bf16, int index);

/// The same for warpgroup products, stmatrix and elect.sync, which compute capability 9.0 has. Throws gpu::NotBuilt on another GPU.
std::vector<Probe> run_warpgroup_probes();

/// The same for copy engines, mbarriers and clusters, which 9.0 and later have. Throws gpu::NotBuilt on another GPU.
std::vector<Probe> run_engine_probes();

/// Operands of the wgmma probes, made of those of the mma probes; a case is one product. B by columns.
constexpr int wgmma_m = 64, wgmma_n = 64, wgmma_cases = 4 * mma_families, stmatrix_rounds = 8;
struct WgmmaOperands {
    std::uint16_t a[wgmma_m][16], b[wgmma_n][16];
    std::uint32_t c[wgmma_m][wgmma_n];
};
WgmmaOperands wgmma_operands(bool bf16, int index);

}  // namespace probes
