#include "common/gpu/emulator/operand.h"

#include <algorithm>
#include <bitset>
#include <utility>

#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/region.h"

namespace emulator {

namespace {

/// The parts of shared memory that the chunks make up, as few as there are: (first byte, bytes).
std::vector<std::pair<const char*, int>> ranges(const SharedArena& arena, const std::vector<char*>& chunks) {
    static std::bitset<max_shared_bytes / chunk_bytes + 1> used;
    std::size_t first = used.size(), last = 0;
    for (const char* chunk : chunks) {
        const std::size_t i = static_cast<std::size_t>(chunk - arena.memory()) / chunk_bytes;
        used.set(i);
        first = std::min(first, i);
        last = std::max(last, i);
    }
    std::vector<std::pair<const char*, int>> result;
    for (std::size_t i = first; i <= last; ++i) {
        if (!used[i]) continue;
        const std::size_t begin = i;
        while (used[i]) used.reset(i++);
        result.emplace_back(arena.memory() + begin * chunk_bytes, static_cast<int>((i - begin) * chunk_bytes));
    }
    return result;
}

}  // namespace

void order_read(SharedArena& arena, const AsyncOperation& operation, Stamp end, const std::vector<char*>& chunks,
                const char* missing) {
    if (chunks.empty()) return;
    for (const auto& [pointer, bytes] : ranges(arena, chunks)) arena.engine_read(operation, end, pointer, bytes);
    const auto [first, last] = std::minmax_element(chunks.begin(), chunks.end());
    arena.remember_reader(operation, end.agent, *first, static_cast<int>(*last - *first) + chunk_bytes, missing);
    totals.shared_read += chunks.size() * chunk_bytes;
}

}  // namespace emulator
