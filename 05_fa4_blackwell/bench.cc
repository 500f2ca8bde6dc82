// Times every rung of stage 05 that verifies on a shape: stage_05_bench --help.
#include "common/profile/bench.h"

namespace stage05 {
void register_stage(ladder::Registry& registry);
}

int main(int argc, char** argv) { return profile::bench(stage05::register_stage, argc, argv); }
