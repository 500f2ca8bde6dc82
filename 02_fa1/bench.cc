// Times every rung of stage 02 that verifies on a shape: stage_02_bench --help.
#include "common/profile/bench.h"

namespace stage02 {
void register_stage(ladder::Registry& registry);
}

int main(int argc, char** argv) { return profile::bench(stage02::register_stage, argc, argv); }
