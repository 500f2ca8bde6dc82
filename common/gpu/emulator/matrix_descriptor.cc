#include "common/gpu/emulator/matrix_descriptor.h"

#include <algorithm>
#include <cstdio>

#include "common/gpu/emulator/machine.h"

namespace emulator {

namespace {

constexpr std::uint32_t window = 1 << 18, element_bytes = 2, row_of_banks = 128;

std::uint32_t field(std::uint64_t bits, int first, int n) {
    return static_cast<std::uint32_t>(bits >> first & ((std::uint64_t{1} << n) - 1));
}

std::string name_of(MatrixReader reader, const char* operand, std::uint64_t bits) {
    char text[32];
    std::snprintf(text, sizeof(text), "0x%016llX", static_cast<unsigned long long>(bits));
    return std::string(reader == MatrixReader::wgmma ? "wgmma" : "tcgen05") + ": the descriptor of " + operand + ", " +
           text;
}

}  // namespace

MatrixDescriptor::MatrixDescriptor(std::uint64_t bits, bool mn_major)
    : start(field(bits, 0, 14) << 4),
      leading(field(bits, 16, 14) << 4),
      stride(field(bits, 32, 14) << 4),
      base_offset(field(bits, 49, 3)),
      span(16u << (4 - field(bits, 62, 2)) % 4),
      mn_major(mn_major) {}

bool MatrixDescriptor::fits(std::uint64_t bits, MatrixReader reader) {
    const bool wgmma = reader == MatrixReader::wgmma;
    return field(bits, 14, 2) == 0 && field(bits, 30, 2) == 0 && field(bits, 46, 3) == (wgmma ? 0u : 1u) &&
           field(bits, 52, 10) == 0 && (wgmma || field(bits, 49, 3) == 0);
}

std::uint32_t MatrixDescriptor::address(int mn, int k) const {
    const auto i = static_cast<std::uint32_t>(mn), k_bytes = static_cast<std::uint32_t>(k) * element_bytes;
    const auto mn_bytes = i * element_bytes, j = static_cast<std::uint32_t>(k);
    const bool swizzled = span > 16;
    std::uint32_t place = start;
    if (mn_major) {  // rows of `span` bytes along mn, eight of them (k) together
        place += mn_bytes % span + j % 8 * span + mn_bytes / span * (swizzled ? leading : stride) +
                 j / 8 * (swizzled ? stride : leading);
    } else {  // rows of `span` bytes along k, eight of them (mn) together
        place += i % 8 * span + i / 8 * stride + (swizzled ? k_bytes : k_bytes % span + k_bytes / span * leading);
    }
    // Chunks of 16 bytes are exchanged within a row: by 1, 2 or 3 bits of the number of the row of banks.
    const std::uint32_t turn = place / row_of_banks - base_offset;
    return place ^ (turn & (span / 16 - 1)) << 4;
}

bool MatrixDescriptor::stays_in_rows(int mn_size) const {
    const std::uint32_t together = mn_major ? static_cast<std::uint32_t>(mn_size) * element_bytes : 16 * element_bytes;
    return span == 16 || start % span + std::min(together, span) <= span;
}

std::vector<char*> chunks(const SharedArena& arena, MatrixReader reader, std::uint64_t bits, bool mn_major, int mn_size,
                          const char* name, Site site) {
    const auto report = [&](const std::string& why) { machine.report(name_of(reader, name, bits) + ": " + why, site); };
    if (!MatrixDescriptor::fits(bits, reader))
        report(reader == MatrixReader::wgmma
                   ? "bits 14, 15, 30, 31, 46 to 48 and 52 to 61 are reserved and must be 0"
                   : "bits 46 to 48 are its version and must be 1; bits 14, 15, 30, 31 and 49 to 61 must be 0 (layouts "
                     "begin where their swizzle does, and its atoms are of 16 bytes)");
    const MatrixDescriptor descriptor(bits, mn_major);
    if (!descriptor.stays_in_rows(mn_size))
        report("it begins " + std::to_string(descriptor.start % descriptor.span) + " bytes into a row of " +
               std::to_string(descriptor.span) + ", and " +
               (mn_major ? std::to_string(mn_size) + " elements along mn" : "16 elements along k") +
               " do not fit from there on");
    const std::uint32_t first = arena.first_address() % window;
    std::vector<char*> result;
    result.reserve(2 * mn_size);
    const auto add = [&](int mn, int k) {
        const std::uint32_t address = descriptor.address(mn, k);
        char* const chunk = arena.memory() + (static_cast<std::int64_t>(address) - first);
        if (!arena.contains(chunk, 16))
            report("element (mn, k) = (" + std::to_string(mn) + ", " + std::to_string(k) +
                   ") would lie at shared address " + std::to_string(address) +
                   ", outside the CTA's shared memory of " + std::to_string(arena.bytes()) + " bytes from " +
                   std::to_string(first) + " on");
        result.push_back(chunk);
    };
    if (mn_major) {
        for (int k = 0; k < 16; ++k)
            for (int mn = 0; mn < mn_size; mn += 8) add(mn, k);
    } else {
        for (int mn = 0; mn < mn_size; ++mn)
            for (int k = 0; k < 16; k += 8) add(mn, k);
    }
    return result;
}

}  // namespace emulator
