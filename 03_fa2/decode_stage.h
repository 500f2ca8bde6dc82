// The decoding rung of stage 03.
#pragma once

#include "common/ladder/registry.h"

namespace stage03 {

void register_decode(ladder::Registry& registry);

/// How many key tiles make a split on a GPU that runs `resident_ctas` CTAs at once.
///
/// Problem::splits: the longest row of key tiles in that many parts. Problem::deterministic: 16 tiles, 1024 keys, whatever the
/// batch. Else the size that is done soonest if CTAs run in waves of resident_ctas, and one takes as long as its tiles and
/// four more for its start and its end.
int split_tiles(const attention::Problem& problem, int resident_ctas);

}  // namespace stage03
