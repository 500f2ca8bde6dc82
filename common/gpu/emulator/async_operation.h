// What engines carry out while threads go on: copies of cp.async, bulk and tensor copies, warpgroup products.
#pragma once

#include <cstdint>
#include <deque>

#include "common/gpu/emulator/emulator.h"
#include "common/gpu/emulator/sanitizers.h"

namespace emulator {

struct Cta;
struct Mbarrier;
struct Thread;

/// Something that a thread has ordered. issue() puts it into the pending list of the CTA; the schedule, or a wait that
/// needs it, performs its steps one after the other: sources are read and destinations written then and not before. Its
/// address must not change.
struct AsyncOperation {
    const char* name;
    Thread* issuer;
    Site site;
    std::int64_t issued_at = 0;
    int pending_index = -1;  // in Cta::pending; -1: performed
    tsan::Token issued = 0, done = 0;

    AsyncOperation(const char* name, Thread* issuer, Site site) : name(name), issuer(issuer), site(site) {}
    virtual ~AsyncOperation() = default;

    /// True if this was the last step.
    virtual bool step() = 0;
    /// The mbarrier at which it will arrive, or that will count its bytes.
    virtual const Mbarrier* counted_by() const { return nullptr; }
    /// Whether a thread is parked until this is performed.
    bool awaited() const;
    /// Whether it will read or write this CTA's shared memory.
    virtual bool touches(const Cta&) const { return false; }

    bool performed() const { return pending_index < 0; }
};

/// From now on under way; some schedules perform its first step at once.
void issue(AsyncOperation& operation);
/// Performs what is left of it.
void finish(AsyncOperation& operation);

/// Operations of one thread in the order of issue, and how they fall into groups.
template <class Operation>
struct Groups {
    std::deque<Operation> operations;
    std::deque<int> sizes;  // of the committed groups, oldest first
    int uncommitted = 0;    // operations after the last group

    void commit() {
        sizes.push_back(uncommitted);
        uncommitted = 0;
    }
    void clear() { *this = {}; }
};

/// To the race detector an engine is somebody else than the thread that it works for: while this lives,
/// tsan::read_range and tsan::write_range speak for the engine.
class EngineSpeaks {
  public:
    explicit EngineSpeaks(AsyncOperation& operation);
    ~EngineSpeaks();
    EngineSpeaks(const EngineSpeaks&) = delete;

  private:
    [[maybe_unused]] AsyncOperation& operation_;
    [[maybe_unused]] void* self_ = nullptr;
};

}  // namespace emulator
