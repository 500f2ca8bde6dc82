// ldmatrix and stmatrix: four 8x8 matrices of 16-bit elements between shared memory and the lanes of a warp.
#include <algorithm>
#include <cstring>

#include "common/gpu/emulator/region.h"
#include "common/gpu/emulator/rendezvous.h"

namespace emulator {

namespace {

constexpr int row_bytes = 16;
constexpr WarpInstruction plain{"ldmatrix", true, false};
constexpr WarpInstruction trans{"ldmatrix.trans", true, false};
constexpr WarpInstruction store_plain{"stmatrix", true, false};

struct Operands {
    std::uint32_t* registers;
    std::uint32_t address;
    bool transposed;
};

/// Shared memory delivers 128 bytes a cycle, one row from each group of four banks: the cycles beyond the first that
/// eight rows cost. Equal addresses are one access.
int extra_cycles(const std::uint32_t* addresses) {
    int cycles = 1;
    for (std::uint32_t group = 0; group < 8; ++group) {
        int rows = 0;
        for (int i = 0; i < 8; ++i) {
            const bool here = addresses[i] / row_bytes % 8 == group;
            rows += here && std::find(addresses, addresses + i, addresses[i]) == addresses + i;
        }
        cycles = std::max(cycles, rows);
    }
    return cycles - 1;
}

void load(Cta& cta, Meeting& meeting) {
    const auto at = [&](int lane) -> Operands& { return *static_cast<Operands*>(meeting.operands[lane]); };
    for (int matrix = 0; matrix < 4; ++matrix) {
        std::uint32_t addresses[8];
        std::uint16_t element[8][8];
        for (int row = 0; row < 8; ++row) {
            addresses[row] = at(8 * matrix + row).address;
            std::memcpy(element[row], cta.arena.at(addresses[row]), row_bytes);
        }
        totals.bank_conflicts += extra_cycles(addresses);
        for (int lane = 0; lane < warp_size; ++lane) {
            const int outer = lane / 4, inner = 2 * (lane % 4);
            const bool transposed = at(lane).transposed;
            const std::uint32_t low = transposed ? element[inner][outer] : element[outer][inner];
            const std::uint32_t high = transposed ? element[inner + 1][outer] : element[outer][inner + 1];
            at(lane).registers[matrix] = low | high << 16;
        }
    }
    totals.shared_read += 4 * 8 * row_bytes;
}

struct StoreOperands {
    const std::uint32_t* registers;
    std::uint32_t address;
};

void store(Cta& cta, Meeting& meeting) {
    const auto at = [&](int lane) -> StoreOperands& { return *static_cast<StoreOperands*>(meeting.operands[lane]); };
    for (int matrix = 0; matrix < 4; ++matrix) {
        std::uint32_t addresses[8];
        for (int row = 0; row < 8; ++row) {
            addresses[row] = at(8 * matrix + row).address;
            for (int pair = 0; pair < 4; ++pair)  // lane 4 row + pair has elements 2 pair, 2 pair + 1
                std::memcpy(cta.arena.at(addresses[row]) + 4 * pair, &at(4 * row + pair).registers[matrix], 4);
        }
        totals.bank_conflicts += extra_cycles(addresses);
    }
    totals.shared_written += 4 * 8 * row_bytes;
}

/// The thread, at an instruction to which it passes the address of a row of 16 bytes.
Thread& thread_with_row(const char* instruction, std::uint32_t address, Site site) {
    machine.operation();
    Thread& thread = machine.thread(instruction);
    if (address % row_bytes != 0)
        machine.report(
            std::string(instruction) + ": the row address " + std::to_string(address) + " is not a multiple of 16",
            site);
    return thread;
}

}  // namespace

void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address, bool transposed, Site site) {
    const WarpInstruction& instruction = transposed ? trans : plain;
    Operands operands{r, address, transposed};
    const void* row = nullptr;
    {
        tsan::Ignore ignore;
        Thread& thread = thread_with_row(instruction.name, address, site);
        row = thread.cta->arena.at(address);
        thread.cta->arena.read(thread, row, row_bytes, instruction.name, site);
    }
    tsan::read_range(row, row_bytes);  // in the lane's own name, before it meets the others
    tsan::Ignore ignore;
    meet(instruction, 0xFFFFFFFFu, &operands, site, load);
}

void stmatrix_x4(std::uint32_t address, const std::uint32_t (&r)[4], Site site) {
    StoreOperands operands{r, address};
    void* row = nullptr;
    {
        tsan::Ignore ignore;
        Thread& thread = thread_with_row(store_plain.name, address, site);
        row = thread.cta->arena.at(address);
        thread.cta->arena.write(thread, row, row_bytes, store_plain.name, site);
    }
    tsan::write_range(row, row_bytes);
    tsan::Ignore ignore;
    meet(store_plain, 0xFFFFFFFFu, &operands, site, store);
}

}  // namespace emulator
