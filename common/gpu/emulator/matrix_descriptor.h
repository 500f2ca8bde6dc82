// Where the operands of a product lie in shared memory. PTX ISA: wgmma and tcgen05, matrix descriptor and shared memory
// layouts.
#pragma once

#include <cstdint>
#include <vector>

#include "common/gpu/emulator/emulator.h"

namespace emulator {

class SharedArena;

/// For whom a descriptor is made: the layouts are the same, bits 46 to 61 are not.
enum class MatrixReader { wgmma, tcgen05 };

/// What the 64 bits of a descriptor say, and the place of every element of an operand with 16-bit elements.
struct MatrixDescriptor {
    std::uint32_t start;            // address of element (0, 0), within the 256 KiB of one CTA's window
    std::uint32_t leading, stride;  // bytes; what they lead to depends on the layout
    std::uint32_t base_offset;      // rows of 128 bytes by which the swizzle is turned
    std::uint32_t span;             // bytes of a row of the layout: 16 (no swizzle), 32, 64 or 128
    bool mn_major;

    MatrixDescriptor(std::uint64_t bits, bool mn_major);
    /// Whether the bits that say nothing of the layout are what the reader wants there.
    static bool fits(std::uint64_t bits, MatrixReader reader);

    /// Address of element (mn, k), mn = row of A or column of B.
    std::uint32_t address(int mn, int k) const;
    /// False if elements that should lie together in a row of the layout would run over its end.
    bool stays_in_rows(int mn_size) const;
};

/// Where an operand of mn_size x 16 elements lies: its chunks of 16 bytes, eight elements each. Chunk 2 i + j of a
/// k-major operand holds (mn, k) = (i, 8 j) and the seven elements after it along k; chunk mn_size / 8 j + i of an
/// mn-major one (8 i, j) and those after it along mn. Reports, for the operand `name` ("A", "B"), a descriptor that PTX
/// does not allow, or that leads out of the CTA's shared memory.
std::vector<char*> chunks(const SharedArena& arena, MatrixReader reader, std::uint64_t bits, bool mn_major, int mn_size,
                          const char* name, Site site);

}  // namespace emulator
