// tcgen05.ld and tcgen05.st: how a warp moves cells to registers and back, and its waits.
#include <algorithm>
#include <bit>
#include <cstring>

#include "common/gpu/emulator/cluster.h"
#include "common/gpu/emulator/region.h"
#include "common/gpu/emulator/rendezvous.h"

namespace emulator {

namespace {

constexpr std::uint32_t all_lanes = 0xFFFFFFFFu;
constexpr WarpInstruction ld{tensor_ld, true, false}, st{tensor_st, true, false};
constexpr WarpInstruction wait_ld{"tcgen05.wait::ld", true, false}, wait_st{"tcgen05.wait::st", true, false};

struct Operands {
    char* registers;
    std::uint32_t address;
    int n;
    bool packed;
};

const Operands& passed(const Meeting& meeting, int lane) {
    return *static_cast<const Operands*>(meeting.operands[lane]);
}

TensorWarp& own_warp(Cta& cta) { return cta.warps[machine.current()->warp()].tensor; }

std::size_t bytes_of_lane(const TensorMove& move) { return 4 * static_cast<std::size_t>(move.n); }

void check_operands(const Meeting& meeting, int warp) {
    const Operands& first = passed(meeting, 0);
    const auto report = [&](const std::string& why) { machine.report(meeting.instruction->name + why, meeting.site); };
    for (int i = 1; i < warp_size; ++i)
        if (const Operands& other = passed(meeting, i); other.address != first.address)
            report(": all lanes of a warp pass the same address, but lane 0 passes " + std::to_string(first.address) +
                   ", and lane " + std::to_string(i) + " " + std::to_string(other.address));
    if (!std::has_single_bit(static_cast<unsigned>(first.n)) || first.n > 128)
        report(" of " + std::to_string(first.n) + " registers; it is 1, 2, 4, ... 128");
    const int lane = lane_of(first.address), own = warp % 4 * warp_size;
    if (lane != 0 && lane != own)
        report(" from lane " + std::to_string(lane) + " on: warp " + std::to_string(warp) + " reaches lanes " +
               std::to_string(own) + "-" + std::to_string(own + 31) + ", so the address has lane " +
               std::to_string(own) + (own == 0 ? "" : " or 0"));
}

/// The load or store to which the lanes have come, in order and noted.
TensorMove& order(Cta& cta, const Meeting& meeting, TensorAgent& agent) {
    const Thread& last = *machine.current();
    check_operands(meeting, last.warp());
    const Operands& first = passed(meeting, 0);
    Thread* const issuer = cta.threads[last.warp() * warp_size].get();
    if (agent.number == 0) agent.number = cta.cluster->add({});
    TensorMove& move = agent.under_way.emplace_back(meeting.instruction->name, issuer, meeting.site, first.n,
                                                    first.address, first.packed);
    const Cells cells{3u << last.warp() % 4 * 2, move.column, first.packed ? 2 * first.n : first.n};
    const TensorAccess access{move.name, issuer, meeting.site, agent.number, cells};
    TensorMemory& memory = cta.tensor_memory;
    memory.check_allocated(last, move.name, cells, meeting.site);
    const std::uint64_t bytes = std::uint64_t{4} * warp_size * static_cast<unsigned>(cells.columns);
    if (meeting.instruction == &ld) {
        memory.read(access, agent.epoch, lanes_of(last));
        totals.tensor_memory_read += bytes;
    } else {
        memory.write(access, agent.epoch, lanes_of(last));
        totals.tensor_memory_written += bytes;
    }
    return move;
}

void order_load(Cta& cta, Meeting& meeting) {
    TensorMove& load = order(cta, meeting, own_warp(cta).loads);
    for (int i = 0; i < warp_size; ++i) {
        load.registers[i] = passed(meeting, i).registers;
        std::memset(load.registers[i], 0xFF, bytes_of_lane(load));
    }
    issue(load);
}

void order_store(Cta& cta, Meeting& meeting) {
    TensorMove& store = order(cta, meeting, own_warp(cta).stores);
    for (int i = 0; i < warp_size; ++i)
        std::memcpy(store.values_of(i), passed(meeting, i).registers, bytes_of_lane(store));
    issue(store);
}

/// Everything of this epoch is performed, and the next one begins.
void finish_all(TensorAgent& agent) {
    if (agent.under_way.empty()) return;
    for (TensorMove& move : agent.under_way) finish(move);
    agent.over = agent.epoch++;
}

/// The lane's registers of a load are named to the wait, and nobody has written there since.
void check_registers(const TensorMove& load, int lane, const std::initializer_list<RegisterArray>& named, Site site) {
    const char* const data = load.registers[lane];
    const int bytes = static_cast<int>(bytes_of_lane(load));
    if (std::none_of(named.begin(), named.end(), [&](const RegisterArray& array) {
            const auto offset = data - static_cast<const char*>(array.data);
            return offset >= 0 && offset + bytes <= array.bytes;
        }))
        machine.report(
            "tcgen05.wait::ld completes a load whose registers it does not name: the one issued at " + text(load.site),
            site);
    for (int i = 0; i < bytes; ++i)
        if (data[i] != static_cast<char>(0xFF))
            machine.report("register " + std::to_string(i / 4) + " of " +
                               text(*load.issuer->cta->threads[load.issuer->index + lane]) +
                               " was changed while the tcgen05.ld issued at " + text(load.site) + " was in flight",
                           site);
}

void complete_loads(Cta& cta, Meeting& meeting) {
    TensorAgent& loads = own_warp(cta).loads;
    finish_all(loads);
    for (const TensorMove& load : loads.under_way)
        for (int i = 0; i < warp_size; ++i)
            check_registers(load, i, *static_cast<std::initializer_list<RegisterArray>*>(meeting.operands[i]),
                            meeting.site);
    for (TensorMove& load : loads.under_way)
        for (int i = 0; i < warp_size; ++i) std::memcpy(load.registers[i], load.values_of(i), bytes_of_lane(load));
    loads.under_way.clear();
}

void complete_stores(Cta& cta, Meeting&) {
    TensorAgent& stores = own_warp(cta).stores;
    finish_all(stores);
    stores.under_way.clear();
}

}  // namespace

TensorMove::TensorMove(const char* name, Thread* issuer, Site site, int n, std::uint32_t address, bool packed)
    : AsyncOperation(name, issuer, site),
      registers{},
      n(n),
      lane(issuer->warp() % 4 * warp_size),
      column(column_of(address)),
      packed(packed),
      values(static_cast<std::size_t>(n) * warp_size) {}

bool TensorMove::step() {
    TensorMemory& memory = issuer->cta->tensor_memory;
    const bool loads = name == tensor_ld;
    constexpr std::uint32_t not_known = 0xFFFF0000u;  // of a cell of which a store writes the low half
    for (int i = 0; i < warp_size; ++i)
        for (int r = 0; r < n; ++r) {
            std::uint32_t& value = values_of(i)[r];
            for (int half = 0; half < (packed ? 2 : 1); ++half) {
                float* const cell = memory.cell(lane + i, column + (packed ? 2 * r + half : r));
                std::uint32_t word = packed ? (half == 0 ? value & 0xFFFFu : value >> 16) | not_known : value;
                if (!loads) {
                    std::memcpy(cell, &word, 4);
                    continue;
                }
                std::memcpy(&word, cell, 4);
                value = !packed ? word : half == 0 ? word & 0xFFFFu : value | word << 16;
            }
        }
    return true;
}

void tcgen05_ld(void* registers, int n, bool packed, std::uint32_t address, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Operands operands{static_cast<char*>(registers), address, n, packed};
    meet(ld, all_lanes, &operands, site, order_load);
}

void tcgen05_st(std::uint32_t address, const void* registers, int n, bool packed, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Operands operands{static_cast<char*>(const_cast<void*>(registers)), address, n, packed};
    meet(st, all_lanes, &operands, site, order_store);
}

void tcgen05_wait_ld(const std::initializer_list<RegisterArray>& registers, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    meet(wait_ld, all_lanes, const_cast<std::initializer_list<RegisterArray>*>(&registers), site, complete_loads);
}

void tcgen05_wait_st(Site site) {
    tsan::Ignore ignore;
    machine.operation();
    meet(wait_st, all_lanes, nullptr, site, complete_stores);
}

}  // namespace emulator
