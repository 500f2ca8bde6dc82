// red.release and ld.acquire: counts in global memory by which CTAs wait for each other.
#include <utility>
#include <vector>

#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/region.h"

namespace emulator {

namespace {

std::vector<Thread*> polling;  // parked until somebody adds
tsan::Token released = 0;

std::string progress(const Thread& thread) {
    return "it has found " + std::to_string(thread.found) + " there, and nobody adds any more";
}

}  // namespace

void forget_polling() { polling.clear(); }

void red_release_gpu_add(const Region* region, int* pointer, int value, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    machine.thread("red.release.gpu.global.add");
    check_alignment(pointer, sizeof(int), site);
    count_ordinary_write(region, pointer, sizeof(int), "red.release.gpu.global.add", site);
    ++totals.atomics;
    tsan::release(released);
    *pointer += value;
    for (Thread* thread : std::exchange(polling, {})) machine.wake(*thread);
}

int ld_acquire_gpu(const Region* region, const int* pointer, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread("ld.acquire.gpu.global");
    check_alignment(pointer, sizeof(int), site);
    check_region(region, pointer, sizeof(int), "ld.acquire.gpu.global",
                 site);  // how often it looks depends on the schedule: not counted
    if (thread.polled == pointer && thread.found == *pointer) {
        polling.push_back(&thread);
        machine.park({"ld.acquire.gpu.global", -1, site, progress});
    }
    thread.polled = pointer;
    thread.found = *pointer;
    tsan::acquire(released);
    return *pointer;
}

}  // namespace emulator
