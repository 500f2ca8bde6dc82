// Dropout of the weights: which are kept is a function of (sequence, head, query, key) alone, so a backward, or any other
// tiling, draws the same mask again instead of storing it.
#pragma once

#include <cmath>

#include "common/attention/problem.h"
#include "common/gpu/types.h"

namespace attention {

using Words = gpu::Vector<std::uint32_t, 4>;

/// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four random words from a counter
/// and a 64-bit key. A round multiplies words 0 and 2 into 64 bits each, and swaps the halves.
GPU_HOST_DEVICE Words philox_4x32_10(Words counter, std::uint64_t key) {
    std::uint32_t key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t product0 = std::uint64_t(0xD2511F53u) * counter[0];
        const std::uint64_t product2 = std::uint64_t(0xCD9E8D57u) * counter[2];
        counter = {static_cast<std::uint32_t>(product2 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(product2),
                   static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
                   static_cast<std::uint32_t>(product0)};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

/// Part of KernelProblem. A kept weight counts `scale` times, a dropped one not at all; l and L know nothing of it.
struct Dropout {
    bool enabled;             // false: every weight is kept, and nothing need be drawn
    float scale;              // 1 / (1 - p)
    std::uint32_t last_kept;  // floor((1 - p) 2^32) - 1, the largest word that keeps a weight: fits 32 bits for any p
    std::uint32_t offset;
    std::uint64_t seed;

    /// Word w is of key 4 block + w, for query i of head `head` = b Hq + h.
    GPU_HOST_DEVICE Words words(int head, int i, int block) const {
        return philox_4x32_10({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(i),
                               static_cast<std::uint32_t>(head), offset},
                              seed);
    }
    GPU_HOST_DEVICE bool keeps(std::uint32_t word) const { return word <= last_kept; }
    /// Whether weight (i, j) is kept; neighbouring keys are cheaper to ask for together, by words().
    GPU_HOST_DEVICE bool keeps(int head, int i, int j) const {
        const Words w = words(head, i, j / 4);  // chosen from, not indexed by j: registers have no index
        return keeps(j & 2 ? (j & 1 ? w[3] : w[2]) : (j & 1 ? w[1] : w[0]));
    }
};

inline Dropout dropout(const Problem& problem) {
    const double keep = 1.0 - static_cast<double>(problem.dropout);
    return {problem.dropout > 0.0f, static_cast<float>(1.0 / keep),
            static_cast<std::uint32_t>(std::floor(keep * 0x1p32) - 1.0), problem.dropout_offset, problem.dropout_seed};
}

}  // namespace attention
