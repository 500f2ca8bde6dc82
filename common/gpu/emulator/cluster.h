// A cluster: the CTAs that run together, and the agents that touch their shared memory.
#pragma once

#include <span>

#include "common/gpu/emulator/machine.h"

namespace emulator {

/// Whoever a stamp can name (clock.h): a thread, an mbarrier that counts copies, or an engine (neither of both).
struct Agent {
    const Thread* thread = nullptr;
    const Cta* cta = nullptr;
    std::int64_t mbarrier_offset = -1;
};

struct Cluster {
    std::vector<std::unique_ptr<Cta>> ctas;  // by rank; never fewer than size
    int size = 0;
    std::vector<Agent> agents;  // 0 is nobody

    // barrier.cluster: its current phase.
    int arrived = 0;
    std::uint32_t phase = 0;
    Sync arriving, complete;  // of this phase, of the one before
    std::vector<Thread*> waiting;
    std::array<tsan::Token, 2> tokens{};

    unsigned add(const Agent& agent) {
        agents.push_back(agent);
        return static_cast<unsigned>(agents.size() - 1);
    }
    std::span<const std::unique_ptr<Cta>> members() const { return {ctas.data(), static_cast<std::size_t>(size)}; }
    int live_threads() const;
};

/// The same place in the shared memory of the CTA of that rank.
inline std::uint32_t address_in(int rank, std::uint32_t address) {
    return (address & 0xFFFFFFu) | static_cast<std::uint32_t>(rank) << 24;
}
/// The CTA of the cluster in whose shared memory an address lies; reports a rank that there is not, or a CTA that has
/// exited.
Cta& cta_of(const Thread& thread, std::uint32_t address, const char* instruction, Site site);
/// A thread of another CTA is about to touch the shared memory of `cta`, which must have begun and must not end before
/// it has learnt of it.
void visit(const Thread& thread, Cta& cta, const char* instruction, Site site);
/// The last thread of the CTA has exited.
void check_cluster_after_exit(const Thread& thread, Site site);

std::string text(const Agent& agent);

}  // namespace emulator
