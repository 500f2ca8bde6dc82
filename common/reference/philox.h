// Philox 4x32-10, the counter-based generator behind dropout, as Salmon et al. define it ("Parallel random numbers: as
// easy as 1, 2, 3", SC 2011). The kernels have their own; the judge shares no code with them.
#pragma once

#include <array>
#include <cstdint>

namespace reference {

/// Four random words that depend on nothing but `counter` and `key`.
std::array<std::uint32_t, 4> philox_4x32_10(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

}  // namespace reference
