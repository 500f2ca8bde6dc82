// The backward rungs of stage 03.
#pragma once

#include "common/ladder/registry.h"

namespace stage03 {

void register_backward(ladder::Registry& registry);

}  // namespace stage03
