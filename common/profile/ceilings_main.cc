// The program `ceilings`: measures what the units of this GPU reach, and prints it beside what NVIDIA states.
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/gpu/launch.h"
#include "common/ladder/output_file.h"
#include "common/profile/ceiling.h"
#include "common/profile/context.h"
#include "common/profile/machines.h"

namespace {

// Returns the exit status: nothing was measured.
int print_table_of_machines() {
    std::printf("There is no GPU to measure here. What NVIDIA states (TB/s; dense TFLOP/s in bf16 and e4m3):\n");
    for (const profile::Machine& m : profile::machines) {
        std::printf("%-15s %6.2f %6.0f %6.0f   %s\n", std::string(m.name).c_str(), m.copy * 1e-12, m.bf16 * 1e-12,
                    m.e4m3 * 1e-12, std::string(m.source).c_str());
    }
    return 3;
}

int run(int argc, char** argv) {
    std::optional<ladder::OutputFile> file;
    if (argc == 3 && std::string(argv[1]) == "--json") {
        file.emplace(argv[2]);
    } else if (argc != 1) {
        std::cerr << "ceilings: the only option is --json FILE, where the figures are written too.\n";
        return 2;
    }
    try {
        if (gpu::device().emulated) return print_table_of_machines();
    } catch (const gpu::Error& error) {
        std::cerr << "ceilings: " << error.what() << '\n';
        return print_table_of_machines();
    }
    const std::vector<profile::Ceiling> ceilings = profile::ceilings();
    std::printf("%s, %d multiprocessors, up to %d MHz\n", gpu::device().name.c_str(), gpu::device().multiprocessors,
                gpu::device().clock_mhz);
    for (const profile::Ceiling& ceiling : ceilings) {
        std::printf("%-16s %8.2f T%-7s %s\n", ceiling.name.c_str(), ceiling.per_second * 1e-12, ceiling.unit.c_str(),
                    ceiling.source.c_str());
    }
    if (file) {
        nlohmann::json json = profile::context("ceilings");
        json["ceilings"] = profile::to_json(ceilings);
        file->commit(json.dump(2) + "\n");
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::cerr << "ceilings: " << error.what() << '\n';
        return 1;
    }
}
