// What the rules of shared memory forbid, in words.
#include "common/gpu/emulator/cluster.h"
#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/shared_arena.h"

namespace emulator {

std::string SharedArena::where(const char* instruction, const char* byte, int bytes) const {
    return std::string(instruction) + " of " + std::to_string(bytes) + " bytes at shared memory offset " +
           std::to_string(byte - memory_);
}

void SharedArena::check_inside(const void* pointer, int bytes, const char* instruction, Site site) const {
    if (contains(pointer, static_cast<std::size_t>(bytes))) return;
    machine.report(where(instruction, static_cast<const char*>(pointer), bytes) +
                       ": outside the CTA's shared memory of " + std::to_string(bytes_) + " bytes",
                   site);
}

/// The engine's access that a byte remembers.
const SharedArena::Order* SharedArena::order_in(const Orders& orders, unsigned agent, const char* byte) const {
    for (const auto& [key, order] : orders)
        if (order.agent == agent && key.first <= byte && byte < key.first + order.bytes) return &order;
    return nullptr;
}

/// "cp.async.bulk issued by thread 0 (warp 0, lane 0) at file:line".
std::string SharedArena::text_of(const Order* order) {
    if (order == nullptr) return "an engine";
    return std::string(order->name) + " issued by " + text(*order->issuer) + " at " + text(order->site);
}

void SharedArena::check_touchable(const Thread& thread, const Knowledge& known, const char* byte, int bytes,
                                  const char* instruction, Site site) const {
    if (known.kind == Knowledge::mbarrier)
        machine.report(where(instruction, byte, bytes) +
                           ": a live mbarrier is there; only mbarrier instructions may touch it before mbarrier.inval",
                       site);
    if (known.kind != Knowledge::in_flight) return;
    const Agent& agent = thread.cta->cluster->agents[known.writer.agent];
    if (agent.thread == nullptr)
        machine.report(where(instruction, byte, bytes) + ": the bytes are the destination of a copy in flight, " +
                           text_of(order_in(engine_writes_, known.writer.agent, byte)) + "; " + text(agent) +
                           " has not counted them yet",
                       site);
    std::string issued;
    for (const Copy& copy : agent.thread->copies.operations)
        if (copy.destination <= byte && byte < copy.destination + copy.bytes) issued = " at " + text(copy.site);
    machine.report(where(instruction, byte, bytes) +
                       ": the bytes are the destination of a cp.async in flight, issued by " + text(*agent.thread) +
                       issued + "; its wait_group has not covered the copy yet",
                   site);
}

void SharedArena::check_readable(const Thread& reader, const Knowledge& known, const char* byte, int bytes,
                                 const char* instruction, Site site) const {
    if (known.kind == Knowledge::never_written)
        machine.report(where(instruction, byte, bytes) + ": nobody has written there since the CTA began", site);
    check_touchable(reader, known, byte, bytes, instruction, site);
    if (ordered(known.writer, reader)) return;
    const Agent& agent = reader.cta->cluster->agents[known.writer.agent];
    machine.report(where(instruction, byte, bytes) + ": " +
                       (agent.thread != nullptr
                            ? text(*agent.thread) + " wrote there and no barrier lies between"
                            : "written by " + text_of(order_in(engine_writes_, known.writer.agent, byte)) +
                                  ", and the thread has not seen phase " + std::to_string(known.writer.epoch - 1) +
                                  " of " + text(agent) + " complete, which counted it"),
                   site);
}

void SharedArena::check_writable(const Thread& writer, const Knowledge& known, const char* byte, int bytes,
                                 const char* instruction, Site site) const {
    const auto& agents = writer.cta->cluster->agents;
    check_touchable(writer, known, byte, bytes, instruction, site);
    if (known.kind == Knowledge::written && !ordered(known.writer, writer)) {
        const Agent& agent = agents[known.writer.agent];
        machine.report(
            where(instruction, byte, bytes) + ": " +
                (agent.thread != nullptr ? text(*agent.thread) + " wrote there too and no barrier lies between"
                                         : text_of(order_in(engine_writes_, known.writer.agent, byte)) +
                                               " wrote there too, and the thread has not seen phase " +
                                               std::to_string(known.writer.epoch - 1) + " of " + text(agent) +
                                               " complete, which counted it"),
            site);
    }
    for (const Stamp& reader : known.readers) {
        if (ordered(reader, writer)) continue;
        const Agent& agent = agents[reader.agent];
        const Order* const order = order_in(engine_reads_, reader.agent, byte);
        machine.report(
            where(instruction, byte, bytes) + ": " +
                (agent.thread != nullptr ? text(*agent.thread) + " has read there and no barrier lies between"
                                         : text_of(order) + " may still be reading there: " +
                                               (order != nullptr ? order->missing : "no wait for it lies between")),
            site);
    }
}

}  // namespace emulator
