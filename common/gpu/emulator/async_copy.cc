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

/// The race detector sees the copy as what it is: the work of somebody else than the thread.
void show_race_detector(Copy& copy) {
#if GPU_TSAN
    CopyQueue& queue = copy.thread->copies;
    if (queue.engine_fiber == nullptr) queue.engine_fiber = __tsan_create_fiber(0);
    void* const self = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(queue.engine_fiber, 1);
    tsan::acquire(copy.issued);
    if (copy.bytes_read > 0) tsan::read_range(copy.source, copy.bytes_read);
    tsan::write_range(copy.destination, copy.bytes);
    tsan::release(copy.done);
    __tsan_switch_to_fiber(self, 1);
#else
    (void)copy;
#endif
}

/// The oldest group is complete: whatever the schedule has not performed yet is performed now, in any order.
void complete_oldest_group(Thread& thread) {
    CopyQueue& queue = thread.copies;
    const int n = queue.groups.front();
    queue.groups.pop_front();
    const int first = n > 0 ? static_cast<int>(machine.random().below(n)) : 0;
    for (int i = 0; i < n; ++i) {
        Copy& copy = queue.copies[(first + i) % n];
        if (copy.pending_index >= 0) perform(copy);
    }
    for (int i = 0; i < n; ++i) {
        Copy& copy = queue.copies.front();
        thread.cta->arena.complete(thread, copy.destination, copy.bytes);
        tsan::acquire(copy.done);
        queue.copies.pop_front();
    }
}

}  // namespace

void perform(Copy& copy) {
    show_race_detector(copy);
    std::memcpy(copy.destination, copy.source, copy.bytes_read);
    std::memset(copy.destination + copy.bytes_read, 0, copy.bytes - copy.bytes_read);
    auto& pending = copy.thread->cta->pending_copies;
    pending[copy.pending_index] = pending.back();
    pending[copy.pending_index]->pending_index = copy.pending_index;
    pending.pop_back();
    copy.pending_index = -1;
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
    cta.arena.write(thread, target, bytes, "cp.async", site, Mark::in_flight);
    std::memset(target, 0xFF, bytes);
    totals.shared_written += bytes;

    CopyQueue& queue = thread.copies;
    ++queue.uncommitted;
    Copy& copy =
        queue.copies.emplace_back(Copy{&thread, target, static_cast<const char*>(source), bytes, bytes_read, site, 0});
    copy.pending_index = static_cast<int>(cta.pending_copies.size());
    cta.pending_copies.push_back(&copy);
    tsan::release(copy.issued);
    if (machine.scheduler().copy_at_issue()) perform(copy);
}

void cp_async_commit_group(Site) {
    tsan::Ignore ignore;
    machine.operation();
    CopyQueue& queue = machine.thread("cp.async.commit_group").copies;
    queue.groups.push_back(queue.uncommitted);
    queue.uncommitted = 0;
}

void cp_async_wait_group(int pending, Site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread("cp.async.wait_group");
    while (static_cast<int>(thread.copies.groups.size()) > pending) complete_oldest_group(thread);
}

}  // namespace emulator
