// How the emulator runs a launch: which legal order of events, from which seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace emulator {

/// in_order, reverse: the ready thread with the lowest or highest index goes on.
/// low_warps_first, high_warps_first: whole warps by index, lanes and copies at random.
/// async_latest, async_earliest: threads at random; asynchronous copies as late as their wait allows, or at issue.
/// random: every choice, copies included, is drawn from the seed.
/// priority: warps and copy engines have random priorities that change at a few random points (PCT).
enum class Schedule {
    in_order,
    reverse,
    low_warps_first,
    high_warps_first,
    async_latest,
    async_earliest,
    random,
    priority
};

struct Options {
    Schedule schedule = Schedule::in_order;
    std::uint64_t seed = 1;                // also places the shared-memory arena
    int resident_ctas = 2;                 // CTAs whose threads are interleaved
    std::uint64_t step_budget = 1u << 30;  // thread switches of one launch, after which it counts as livelock
};

/// The options of the launches that follow.
void set_options(const Options& options);
const Options& options();

const char* name(Schedule schedule);
/// Throws std::invalid_argument, naming the schedules there are.
Schedule schedule_from_name(const std::string& name);
/// One Options for each schedule (several seeds for the random ones): what "the standard seeds" means in tests.
std::vector<Options> standard_schedules();

}  // namespace emulator
