#include "common/gpu/emulator/box.h"

#include "common/gpu/emulator/machine.h"

namespace emulator {

void check_multiple(const char* name, const char* what, std::int64_t value, int of, Site site) {
    if (value % of == 0) return;
    machine.report(
        std::string(name) + ": " + what + ", " + std::to_string(value) + ", is not a multiple of " + std::to_string(of),
        site);
}

Box box_at(const TensorMap& map, const int* coordinates, int rank, const char* name, Site site) {
    if (map.rank != rank)
        machine.report(std::string(name) + " with " + std::to_string(rank) + " coordinates of a tensor map of " +
                           std::to_string(map.rank) + " dimensions",
                       site);
    check_multiple(name, "the first coordinate in bytes", std::int64_t{coordinates[0]} * map.element_bytes, 16, site);
    Box box{map, {}};
    std::copy_n(coordinates, rank, box.begin);
    return box;
}

Box row_box(const void* data, const Region* region, int bytes, const char* name, Site site) {
    if (bytes < 16) machine.report(std::string(name) + " of " + std::to_string(bytes) + " bytes; at least 16", site);
    check_multiple(name, "the number of bytes", bytes, 16, site);
    check_multiple(name, "the address in global memory",
                   static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data)), 16, site);
    return {{static_cast<char*>(const_cast<void*>(data)), region, 1, 1, {bytes}, {1}, {bytes}, 0}, {}};
}

}  // namespace emulator
