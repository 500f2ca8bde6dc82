// Times every rung of stage 01 that verifies on a shape: stage_01_bench --help.
#include "common/profile/bench.h"

namespace stage01 {
void register_stage(ladder::Registry& registry);
}

int main(int argc, char** argv) { return profile::bench(stage01::register_stage, argc, argv); }
