#include "common/gpu/emulator/async_copy.h"

#include <cstring>

#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/region.h"

namespace emulator {

namespace {

void check_copy(const Thread& thread, std::uint32_t destination, const void* source, int bytes, int bytes_read,
                Site site) {
    if (destination % static_cast<unsigned>(bytes) != 0)
        machine.report("cp.async: the destination, shared address " + std::to_string(destination) +
                           ", is not a multiple of " + std::to_string(bytes),
                       site);
    if (reinterpret_cast<std::uintptr_t>(source) % static_cast<unsigned>(bytes) != 0)
        machine.report("cp.async: the source is not a multiple of " + std::to_string(bytes), site);
    if (bytes_read < 0 || bytes_read > bytes)
        machine.report(
            "cp.async: " + std::to_string(bytes_read) + " bytes to read, allowed are 0 to " + std::to_string(bytes),
            site);
    (void)thread;
}

/// The oldest group is complete: whatever the schedule has not performed yet is performed now, in any order.
void complete_oldest_group(Thread& thread) {
    auto& copies = thread.copies.operations;
    auto& sizes = thread.copies.sizes;
    const int n = sizes.front();
    sizes.pop_front();
    const int first = n > 0 ? static_cast<int>(machine.random().below(n)) : 0;
    for (int i = 0; i < n; ++i) finish(copies[(first + i) % n]);
    for (int i = 0; i < n; ++i) {
        Copy& copy = copies.front();
        thread.cta->arena.complete(thread, copy.destination, copy.bytes);
        tsan::acquire(copy.done);
        copies.pop_front();
    }
}

}  // namespace

bool Copy::step() {
    {
        EngineSpeaks engine(*this);
        if (bytes_read > 0) tsan::read_range(source, bytes_read);
        tsan::write_range(destination, bytes);
    }
    std::memcpy(destination, source, bytes_read);
    std::memset(destination + bytes_read, 0, bytes - bytes_read);
    return true;
}

void cp_async(std::uint32_t destination, const void* source, const Region* region, int bytes, int bytes_read,
              Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread("cp.async");
    Cta& cta = *thread.cta;
    check_copy(thread, destination, source, bytes, bytes_read, site);
    if (bytes_read > 0) count_global_read(region, source, bytes_read, "cp.async", site);
    char* const target = cta.arena.at(destination);
    cta.arena.write(thread, target, bytes, "cp.async", site, Knowledge::in_flight);
    std::memset(target, 0xFF, bytes);
    totals.shared_written += bytes;

    ++thread.copies.uncommitted;
    issue(thread.copies.operations.emplace_back(&thread, site, target, static_cast<const char*>(source), bytes,
                                                bytes_read));
}

void cp_async_commit_group(Site) {
    tsan::Ignore ignore;
    machine.operation();
    machine.thread("cp.async.commit_group").copies.commit();
}

void cp_async_wait_group(int pending, Site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread("cp.async.wait_group");
    while (static_cast<int>(thread.copies.sizes.size()) > pending) complete_oldest_group(thread);
}

}  // namespace emulator
