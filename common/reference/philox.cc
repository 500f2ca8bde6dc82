#include "common/reference/philox.h"

namespace reference {

std::array<std::uint32_t, 4> philox_4x32_10(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t even = std::uint64_t{0xD2511F53u} * counter[0];
        const std::uint64_t odd = std::uint64_t{0xCD9E8D57u} * counter[2];
        const auto high = [](std::uint64_t product) { return static_cast<std::uint32_t>(product >> 32); };
        const auto low = [](std::uint64_t product) { return static_cast<std::uint32_t>(product); };
        counter = {high(odd) ^ counter[1] ^ key[0], low(odd), high(even) ^ counter[3] ^ key[1], low(even)};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return counter;
}

}  // namespace reference
