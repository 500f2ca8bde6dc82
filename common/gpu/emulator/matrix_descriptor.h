// Where the operands of a warpgroup product lie in shared memory. PTX ISA: wgmma, matrix descriptor and shared memory layouts.
#pragma once

#include <cstdint>

#include "common/gpu/emulator/emulator.h"

namespace emulator {

class SharedArena;

/// What the 64 bits of a descriptor say, and the place of every element of an operand with 16-bit elements.
struct MatrixDescriptor {
    std::uint32_t start;            // address of element (0, 0), within the 256 KiB of one CTA's window
    std::uint32_t leading, stride;  // bytes; what they lead to depends on the layout
    std::uint32_t base_offset;      // rows of 128 bytes by which the swizzle is turned
    std::uint32_t span;             // bytes of a row of the layout: 16 (no swizzle), 32, 64 or 128
    bool mn_major;

    MatrixDescriptor(std::uint64_t bits, bool mn_major);
    static bool reserved_bits_are_zero(std::uint64_t bits);

    /// Address of element (mn, k), mn = row of A or column of B.
    std::uint32_t address(int mn, int k) const;
    /// False if elements that should lie together in a row of the layout would run over its end.
    bool stays_in_rows(int mn_size) const;
};

/// The operand `name` ("A", "B") of mn_size x 16 elements: reports a descriptor that PTX does not allow, or that leads out of the CTA's
/// shared memory.
MatrixDescriptor checked_descriptor(const SharedArena& arena, std::uint64_t bits, bool mn_major, int mn_size,
                                    const char* name, Site site);

/// The byte with an address of a descriptor.
char* at_descriptor_address(const SharedArena& arena, std::uint32_t address);

/// Calls each(i, j, address) for every 16 bytes of an operand, eight elements that lie together: of element (mn, k) = (i, 8 j) and the seven
/// after it along k if k-major, of (8 i, j) along mn if mn-major.
template <class Each>
void for_each_chunk(const MatrixDescriptor& descriptor, int mn_size, Each each) {
    if (descriptor.mn_major) {
        for (int j = 0; j < 16; ++j)
            for (int i = 0; i < mn_size / 8; ++i) each(i, j, descriptor.address(8 * i, j));
    } else {
        for (int i = 0; i < mn_size; ++i)
            for (int j = 0; j < 2; ++j) each(i, j, descriptor.address(i, 8 * j));
    }
}

}  // namespace emulator
