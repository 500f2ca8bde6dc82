// 02a with key tiles of any size, for the theory: Algorithm 1 moves Theta(N^2 d^2 / M) elements with Bc = M / 4d.
#pragma once

#include "common/ladder/registry.h"

namespace stage02 {

/// The sizes of key tiles that rung_a takes.
constexpr int key_tiles[] = {4, 8, 16, 32, 64, 128};

/// 02a with key tiles of Bc keys, forward; takes fp32 and d up to 64. Throws std::out_of_range for another Bc.
ladder::Rung rung_a(int Bc);

}  // namespace stage02
