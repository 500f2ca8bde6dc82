#include "common/profile/context.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/gpu/launch.h"
#include "common/ladder/registry.h"

namespace profile {
namespace {

using nlohmann::json;

constexpr std::pair<const char*, const char*> questions[] = {
    {"sm_mhz", "clocks.sm"},          {"memory_mhz", "clocks.mem"},         {"power_w", "power.draw"},
    {"power_limit_w", "power.limit"}, {"temperature_c", "temperature.gpu"}, {"driver", "driver_version"}};

// One line of answers separated by ", "; empty without the program or a GPU.
std::string ask_nvidia_smi() {
    std::string command = "nvidia-smi --format=csv,noheader,nounits --id=0 --query-gpu=";
    for (const auto& [name, question] : questions) command += std::string(question) + ",";
    command.back() = ' ';
    std::string answer;
    if (FILE* pipe = popen((command + "2> /dev/null").c_str(), "r")) {
        char line[512];
        if (std::fgets(line, sizeof(line), pipe)) answer = line;
        if (pclose(pipe) != 0) answer.clear();
    }
    return answer;
}

json nvidia_smi() {
    std::istringstream answers(ask_nvidia_smi());
    json result;
    std::string answer;
    for (const auto& [name, question] : questions) {
        if (!std::getline(answers >> std::ws, answer, ',')) return nullptr;
        while (!answer.empty() && std::isspace(static_cast<unsigned char>(answer.back()))) answer.pop_back();
        char* end = nullptr;
        const double number = std::strtod(answer.c_str(), &end);
        const bool is_number = !answer.empty() && *end == '\0';
        if (std::string(name) == "driver") result[name] = answer;
        else result[name] = is_number ? json(number) : json(nullptr);  // "[N/A]"
    }
    return result;
}

}  // namespace

json context(const std::string& command) {
    const gpu::Device device = gpu::device();
#ifdef NDEBUG
    constexpr bool debug = false;
#else
    constexpr bool debug = true;
#endif
    return {{"schema", 2},
            {"machine", device.emulated ? "emulated" : device.name},
            {"emulated", device.emulated},
            {"multiprocessors", device.emulated ? json(nullptr) : json(device.multiprocessors)},
            {"clock_mhz", device.emulated ? json(nullptr) : json(device.clock_mhz)},
            {"smi", device.emulated ? json(nullptr) : nvidia_smi()},
            {"build", ladder::build_description()},
            {"debug", debug},
            {"commit", ladder::build_commit()},
            {"command", command}};
}

json to_json(const std::vector<Ceiling>& ceilings) {
    json result = json::object();
    for (const Ceiling& ceiling : ceilings) {
        result[ceiling.name] = {{"per_second", ceiling.per_second}, {"unit", ceiling.unit}, {"source", ceiling.source}};
    }
    return result;
}

}  // namespace profile
