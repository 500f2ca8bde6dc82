// The program `bench`: times every rung of this build that verifies on a problem; see bench --help.
#include "common/profile/bench.h"

int main(int argc, char** argv) { return profile::bench(ladder::register_stages, argc, argv); }
