// Operands of products in shared memory, as chunks of 16 bytes (matrix_descriptor.h).
#pragma once

#include <cstring>
#include <vector>

#include "common/gpu/emulator/clock.h"
#include "common/gpu/emulator/tensor_core.h"

namespace emulator {

class SharedArena;
struct AsyncOperation;

constexpr int chunk_bytes = 16;

/// Until `end` is over, the engine that carries out the operation may read these chunks; `missing` says in reports what
/// would tell of the end.
void order_read(SharedArena& arena, const AsyncOperation& operation, Stamp end, const std::vector<char*>& chunks,
                const char* missing);

/// Element (mn, k) of an operand goes to where place(mn, k) says.
template <class Place>
void read_operand(const std::vector<char*>& chunks, bool mn_major, Place place) {
    const int n = static_cast<int>(chunks.size()), mn_chunks = n / mma_k;
    for (int chunk = 0; chunk < n; ++chunk) {
        std::uint16_t elements[8];
        std::memcpy(elements, chunks[chunk], chunk_bytes);
        for (int e = 0; e < 8; ++e)
            (mn_major ? place(chunk % mn_chunks * 8 + e, chunk / mn_chunks) : place(chunk / 2, chunk % 2 * 8 + e)) =
                elements[e];
    }
}

}  // namespace emulator
