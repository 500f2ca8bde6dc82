// Times every rung of stage 04 that verifies on a shape: stage_04_bench --help.
#include "common/profile/bench.h"

namespace stage04 {
void register_stage(ladder::Registry& registry);
}

int main(int argc, char** argv) { return profile::bench(stage04::register_stage, argc, argv); }
