// The backward rungs of stage 04.
#pragma once

#include "common/ladder/registry.h"

namespace stage04 {

void register_backward(ladder::Registry& registry);

}  // namespace stage04
