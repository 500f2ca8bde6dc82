// Registers stage 03.
#include "03_fa2/backward_stage.h"

namespace stage03 {

void register_stage(ladder::Registry& registry) { register_backward(registry); }

}  // namespace stage03
