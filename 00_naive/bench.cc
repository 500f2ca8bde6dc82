// Times every rung of stage 00 that verifies on a shape: stage_00_bench --help.
#include "common/profile/bench.h"

namespace stage00 {
void register_stage(ladder::Registry& registry);
}

int main(int argc, char** argv) { return profile::bench(stage00::register_stage, argc, argv); }
