// Where the elements of a tile lie in shared memory, without and with a swizzle, and what that does to eight rows of
// one column.
//
// Shared memory delivers 128 bytes a cycle, 4 from each of 32 banks; byte b belongs to bank b / 4 % 32. A row of 64
// bf16 is 128 bytes, so rows lie one below the other in the same banks: eight rows of one 16-byte chunk, which is what
// ldmatrix reads at once and a tensor core wants of an operand, all come from the same four banks, one row a cycle.
// xor_8 moves chunk c of row r to chunk c ^ r % 8 of the row: the eight rows lie in eight different groups of four
// banks. SharedTile<..., Swizzle::xor_8>, PanelTile and a tensor copy with a 128-byte swizzle all do this.
#include <algorithm>
#include <vector>

#include "docs/labs/lab.h"

using namespace gpu;

namespace {

constexpr int rows = 8, chunks = 8, matrices = 4;  // ldmatrix_x4: four columns of chunks, one after the other

template <Swizzle swizzle>
struct Shared {
    SharedTile<bf16, rows, 8 * chunks, swizzle> tile;
};

/// Where each chunk of the tile lies, in chunks from its start; and one ldmatrix.
template <Swizzle swizzle>
__global__ void look(Tensor<int> places) {
    auto& tile = shared_memory<Shared<swizzle>>().tile;
    const auto places_gmem = places.matrix(0, 0, 0, rows);
    const int lane = lane_id();
    for (int i = lane; i < rows * chunks; i += 32) {
        tile.store(i / chunks, i % chunks * 8, Vector<bf16, 8>{});
        places_gmem(i / chunks, i % chunks) = int(tile.address(i / chunks, i % chunks * 8) - tile.address(0, 0)) / 16;
    }
    bar_warp_sync(all_lanes);
    std::uint32_t registers[4];
    ldmatrix_x4(registers, tile.address(lane % 8, lane / 8 * 8));
}

template <Swizzle swizzle>
bool show(const char* title, int expected) {
    const Buffer places("places", rows * chunks * sizeof(int));
    reset_counters();
    launch({"look", 1, 32, sizeof(Shared<swizzle>)}, look<swizzle>, places.tensor<int>(0, 0, chunks, chunks));
    synchronize();
    std::vector<int> place(rows * chunks);
    places.read(place.data(), places.bytes());

    std::printf("%s: the four banks in which each chunk lies\n", title);
    for (int row = 0; row < rows; ++row) {
        std::printf("  row %d ", row);
        for (int chunk = 0; chunk < chunks; ++chunk) {
            const int bank = place[row * chunks + chunk] % 8 * 4;
            std::printf(" %2d-%-2d", bank, bank + 3);
        }
        std::puts("");
    }
    int extra = 0;
    for (int chunk = 0; chunk < matrices; ++chunk) {
        int in_group[8] = {};
        for (int row = 0; row < rows; ++row) ++in_group[place[row * chunks + chunk] % 8];
        extra += *std::max_element(in_group, in_group + 8) - 1;
    }
    std::printf("  cycles for a column of chunks: %d", 1 + extra / matrices);
    const auto counted = counters();
    if (counted)
        std::printf("; counted in one ldmatrix_x4, cycles too many: %llu", (unsigned long long)counted->bank_conflicts);
    std::puts("\n");
    return extra == expected && (!counted || counted->bank_conflicts == static_cast<std::uint64_t>(extra));
}

bool lab() {
    const bool plain = show<Swizzle::none>("Without a swizzle", matrices * (rows - 1));
    const bool swizzled = show<Swizzle::xor_8>("With xor_8", 0);
    return plain && swizzled;
}

}  // namespace

int main(int argc, char** argv) { return run_lab(argc, argv, lab); }
