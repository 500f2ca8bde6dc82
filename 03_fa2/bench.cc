// Times every rung of stage 03 that verifies on a shape: stage_03_bench --help.
#include "common/profile/bench.h"

namespace stage03 {
void register_stage(ladder::Registry& registry);
}

int main(int argc, char** argv) { return profile::bench(stage03::register_stage, argc, argv); }
