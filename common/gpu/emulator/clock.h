// What happened before what: vector clocks.
//
// An agent is whoever touches shared memory: a thread; an engine that reads on behalf of a thread or a warpgroup; an
// mbarrier, in whose name copies write. Each counts its epochs and stamps what it does with (agent, epoch). An access
// is ordered after an earlier one if the thread that makes it has, by some chain of arrivals and waits, learnt that the
// earlier agent's epoch is over.
//
// Lanes that wait together learn the same: they share one clock, so that a barrier costs one copy of it and not one for
// each thread.
#pragma once

#include <algorithm>
#include <boost/smart_ptr/make_local_shared.hpp>
#include <cstdint>
#include <utility>
#include <vector>

namespace emulator {

struct Thread;

/// Who did something to a byte, and when. Agent 0 is nobody.
struct [[gnu::packed]] Stamp {
    std::uint16_t agent;
    std::uint32_t epoch : 24;
};

/// For each agent the last epoch that is over, and of threads the last whose ordinary stores fence.proxy.async has
/// shown to engines.
class Clock {
  public:
    std::uint32_t known(unsigned agent) const { return agent < known_.size() ? known_[agent] : 0; }
    std::uint32_t fenced(unsigned agent) const { return agent < fenced_.size() ? fenced_[agent] : 0; }

    void learn(unsigned agent, std::uint32_t epoch, std::uint32_t fenced_epoch = 0) {
        raise(known_, agent, epoch);
        if (fenced_epoch > 0) raise(fenced_, agent, fenced_epoch);
    }
    void join(const Clock& other) {
        join(known_, other.known_);
        join(fenced_, other.fenced_);
    }

  private:
    static void raise(std::vector<std::uint32_t>& epochs, unsigned agent, std::uint32_t epoch) {
        if (agent >= epochs.size()) epochs.resize(agent + 1);
        epochs[agent] = std::max(epochs[agent], epoch);
    }
    static void join(std::vector<std::uint32_t>& epochs, const std::vector<std::uint32_t>& others) {
        if (epochs.size() < others.size()) epochs.resize(others.size());
        for (std::size_t i = 0; i < others.size(); ++i) epochs[i] = std::max(epochs[i], others[i]);
    }

    std::vector<std::uint32_t> known_, fenced_;
};

/// What a thread has learnt; never null, never changed.
using Past = boost::local_shared_ptr<const Clock>;

/// One generation of a place where threads synchronise: what those who arrived knew and did.
class Sync {
  public:
    /// The thread arrives: what it knows and did so far is over for those who will wait. A new epoch of the thread
    /// begins.
    void release(Thread& thread);
    /// The thread has waited.
    void acquire(Thread& thread);
    /// Those who wait learn this too.
    void learn(unsigned agent, std::uint32_t epoch);
    void learn(const Past& past);

  private:
    Clock& clock();

    boost::local_shared_ptr<Clock> clock_;
    std::vector<Past> joined_;                  // what it was made of
    std::vector<std::pair<Past, Past>> given_;  // what those who did not arrive knew, before and after
};

/// Whether what the stamp tells of is over for the thread.
bool ordered(Stamp earlier, const Thread& thread);

/// The thread has seen the end of an engine's epoch.
void learn(Thread& thread, unsigned agent, std::uint32_t epoch);

}  // namespace emulator
