#include <stdexcept>

#include "common/gpu/emulator/options.h"
#include "common/gpu/launch.h"

namespace gpu {

void choose_schedule(const std::string& name, std::uint64_t seed) {
    emulator::Options options = emulator::options();
    try {
        options.schedule = emulator::schedule_from_name(name);
    } catch (const std::invalid_argument& error) {
        throw Error(error.what());
    }
    options.seed = seed;
    emulator::set_options(options);
}

}  // namespace gpu
