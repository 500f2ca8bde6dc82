// Registers stage 03.
#include "03_fa2/decode_stage.h"

namespace stage03 {

void register_stage(ladder::Registry& registry) { register_decode(registry); }

}  // namespace stage03
