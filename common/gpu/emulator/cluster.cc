#include "common/gpu/emulator/cluster.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/gpu/emulator/region.h"
#include "common/gpu/emulator/rendezvous.h"

namespace emulator {

namespace {

constexpr WarpInstruction arrive_instruction{"barrier.cluster.arrive", true, false};
constexpr WarpInstruction wait_instruction{"barrier.cluster.wait", true, false};

std::string progress(const Thread& thread) {
    const Cluster& cluster = *thread.cta->cluster;
    return std::to_string(cluster.arrived) + " of the " + std::to_string(cluster.live_threads()) +
           " threads of the cluster that have not exited have arrived";
}

/// All threads that have not exited have arrived: the next phase begins.
void complete_if_all_arrived(Cluster& cluster) {
    if (cluster.arrived == 0 || cluster.arrived < cluster.live_threads()) return;
    cluster.complete = std::exchange(cluster.arriving, {});
    cluster.arrived = 0;
    ++cluster.phase;
    ++totals.barriers;
    for (Thread* thread : std::exchange(cluster.waiting, {})) machine.wake(*thread);
}

/// The float at an address in the shared memory of any CTA of the cluster, about to be read or written.
char* access(std::uint32_t address, bool write, const char* instruction, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(instruction);
    if (address % 4 != 0)
        machine.report(
            std::string(instruction) + ": the shared address " + std::to_string(address) + " is not a multiple of 4",
            site);
    Cta& cta = cta_of(thread, address, instruction, site);
    visit(thread, cta, instruction, site);
    char* const bytes = cta.arena.at(address);
    if (write) {
        cta.arena.write(thread, bytes, 4, instruction, site);
    } else {
        cta.arena.read(thread, bytes, 4, instruction, site);
    }
    (write ? totals.shared_written : totals.shared_read) += 4;
    return bytes;
}

}  // namespace

int Cluster::live_threads() const {
    int n = 0;
    for (const auto& cta : members()) n += cta->live_threads;
    return n;
}

std::string text(const Agent& agent) {
    return "the mbarrier at shared memory offset " + std::to_string(agent.mbarrier_offset) +
           (agent.cta->cluster->size > 1 ? " of CTA " + std::to_string(agent.cta->index) : "");
}

Cta& cta_of(const Thread& thread, std::uint32_t address, const char* instruction, Site site) {
    const Cluster& cluster = *thread.cta->cluster;
    const auto rank = static_cast<int>(address >> 24);
    if (rank >= cluster.size)
        machine.report(std::string(instruction) + ": there is no CTA of rank " + std::to_string(rank) +
                           " in a cluster of " + std::to_string(cluster.size),
                       site);
    return *cluster.ctas[rank];
}

void visit(const Thread& thread, Cta& cta, const char* instruction, Site site) {
    if (&cta == thread.cta) return;
    const std::string what = std::string(instruction) + " in the shared memory of CTA " + std::to_string(cta.index);
    if (cta.live_threads == 0) machine.report(what + ", which has exited", site);
    const auto begun = [&](const auto& other) { return thread.past->known(other->agent) > 0; };
    if (std::none_of(cta.threads.begin(), cta.threads.begin() + cta.thread_count, begun))
        machine.report(what + ", which need not have started: no barrier of the cluster lies between", site);
    cta.visitors[thread.agent] = thread.epoch;
}

void check_cluster_after_exit(const Thread& thread, Site site) {
    Cta& cta = *thread.cta;
    Cluster& cluster = *cta.cluster;
    if (thread.cluster_arrived && thread.cluster_phase == cluster.phase) --cluster.arrived;
    complete_if_all_arrived(cluster);
    if (cta.live_threads > 0) return;
    for (const auto& other : cluster.members())
        for (const AsyncOperation* operation : other->pending)
            if (operation->touches(cta))
                machine.report("the CTA ends while " + std::string(operation->name) + " issued by " +
                                   text(*operation->issuer) + " at " + text(operation->site) +
                                   " is on its way to its shared memory",
                               site);
    check_mbarriers_after_exit(cta, site);
    cta.tensor_memory.check_after_exit(site);
    for (const auto& [agent, epoch] : cta.visitors) {
        const auto knows = [&, agent = agent, epoch = epoch](const auto& own) {
            return own->past->known(agent) >= epoch;
        };
        if (std::none_of(cta.threads.begin(), cta.threads.begin() + cta.thread_count, knows))
            machine.report("the CTA ends although " + text(*cluster.agents[agent].thread) + " of CTA " +
                               std::to_string(cluster.agents[agent].cta->index) +
                               " touches its shared memory: no barrier of the cluster, and no mbarrier, lies between",
                           site);
    }
}

int cluster_ctarank() { return machine.thread("%cluster_ctarank").cta->rank; }

void cluster_arrive(Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(arrive_instruction.name);
    Cluster& cluster = *thread.cta->cluster;
    meet(arrive_instruction, thread.cta->warps[thread.warp()].exists, nullptr, site, [](Cta&, Meeting&) {});
    if (thread.cluster_arrived)
        machine.report("barrier.cluster.arrive a second time; barrier.cluster.wait comes between", site);
    thread.cluster_arrived = true;
    thread.cluster_phase = cluster.phase;
    cluster.arriving.release(thread);
    tsan::release(cluster.tokens[cluster.phase % 2]);
    ++cluster.arrived;
    complete_if_all_arrived(cluster);
}

void cluster_wait(Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(wait_instruction.name);
    Cluster& cluster = *thread.cta->cluster;
    meet(wait_instruction, thread.cta->warps[thread.warp()].exists, nullptr, site, [](Cta&, Meeting&) {});
    if (!thread.cluster_arrived)
        machine.report("barrier.cluster.wait without a barrier.cluster.arrive before it", site);
    if (cluster.phase == thread.cluster_phase) {
        cluster.waiting.push_back(&thread);
        machine.park({wait_instruction.name, -1, site, progress});
    }
    thread.cluster_arrived = false;
    cluster.complete.acquire(thread);
    tsan::acquire(cluster.tokens[thread.cluster_phase % 2]);
}

std::uint32_t mapa(std::uint32_t address, int rank, Site site) {
    const Thread& thread = machine.thread("mapa");
    if (rank < 0 || rank >= thread.cta->cluster->size) {
        tsan::Ignore ignore;
        machine.report(
            "mapa to rank " + std::to_string(rank) + " of a cluster of " + std::to_string(thread.cta->cluster->size),
            site);
    }
    return address_in(rank, address);
}

float ld_shared_cluster(std::uint32_t address, Site site) {
    const char* const bytes = access(address, false, "ld.shared::cluster", site);
    tsan::read_range(bytes, 4);
    float value;
    std::memcpy(&value, bytes, 4);
    return value;
}

void st_shared_cluster(std::uint32_t address, float value, Site site) {
    char* const bytes = access(address, true, "st.shared::cluster", site);
    tsan::write_range(bytes, 4);
    std::memcpy(bytes, &value, 4);
}

}  // namespace emulator
