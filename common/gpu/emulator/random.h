// The one source of chance: splitmix64, so that a seed gives the same run on every machine.
#pragma once

#include <cstdint>

namespace emulator {

class Random {
  public:
    explicit Random(std::uint64_t seed = 0) : state_(seed) {}

    std::uint64_t next() {
        std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        return z ^ z >> 31;
    }
    /// 0 ... n - 1.
    std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>((next() >> 32) * n >> 32); }

  private:
    std::uint64_t state_;
};

}  // namespace emulator
