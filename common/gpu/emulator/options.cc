#include "common/gpu/emulator/options.h"

#include <stdexcept>
#include <utility>

namespace emulator {

namespace {

constexpr std::pair<Schedule, const char*> schedules[] = {
    {Schedule::in_order, "in_order"},
    {Schedule::reverse, "reverse"},
    {Schedule::low_warps_first, "low_warps_first"},
    {Schedule::high_warps_first, "high_warps_first"},
    {Schedule::async_latest, "async_latest"},
    {Schedule::async_earliest, "async_earliest"},
    {Schedule::random, "random"},
    {Schedule::priority, "priority"},
};

Options current;

}  // namespace

void set_options(const Options& options) { current = options; }
const Options& options() { return current; }

const char* name(Schedule schedule) {
    for (const auto& [value, text] : schedules)
        if (value == schedule) return text;
    return "unknown";
}

Schedule schedule_from_name(const std::string& name) {
    std::string known;
    for (const auto& [value, text] : schedules) {
        if (name == text) return value;
        known += std::string(known.empty() ? "" : ", ") + text;
    }
    throw std::invalid_argument("there is no schedule \"" + name + "\"; there are " + known);
}

std::vector<Options> standard_schedules() {
    std::vector<Options> result;
    for (const auto& [schedule, text] : schedules) {
        const bool many = schedule == Schedule::random || schedule == Schedule::priority;
        for (std::uint64_t seed = 1; seed <= (many ? 3u : 1u); ++seed) {
            Options options;
            options.schedule = schedule;
            options.seed = seed;
            result.push_back(options);
        }
    }
    return result;
}

}  // namespace emulator
