// Division by a number that the host knows.
#pragma once

#include <bit>
#include <cstdint>

#include "common/gpu/machine.h"

namespace attention {

/// n / divisor by a multiplication and a shift. A GPU has no instruction that divides: n / variable is some twenty of
/// them, and what they keep in registers made a producer of 24 registers spill. Exact for 0 <= n < 2^31 (Granlund,
/// Montgomery, "Division by Invariant Integers using Multiplication", 1994, figure 4.1).
class Divisor {
  public:
    /// value: at least 1.
    explicit Divisor(int value)
        : value_(value),
          shift_(std::bit_width(unsigned(value) - 1)),
          factor_(std::uint32_t(((std::uint64_t(1) << shift_) - value) * (std::uint64_t(1) << 32) / value + 1)) {}

    GPU_HOST_DEVICE friend int operator/(int n, const Divisor& divisor) {
        const auto high = std::uint32_t(std::uint64_t(n) * divisor.factor_ >> 32);
        return int((high + std::uint32_t(n)) >> divisor.shift_);
    }
    GPU_HOST_DEVICE int value() const { return value_; }

  private:
    int value_, shift_;
    std::uint32_t factor_;
};

}  // namespace attention
