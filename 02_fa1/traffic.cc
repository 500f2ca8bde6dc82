// The elements that 02a requests with key tiles of 4 ... 128 keys, counted: stage_02_traffic FILE writes them, and
// common/plots/traffic.py draws them against M = 4 Bc d, the on-chip memory for which Algorithm 1 chooses Bc.
#include <iostream>
#include <nlohmann/json.hpp>

#include "02_fa1/key_tiles.h"
#include "common/ladder/output_file.h"
#include "common/verify/run.h"

int main(int argc, char** argv) {
    if (argc != 2 || std::string(argv[1]).starts_with("-")) {
        std::cerr << "Usage: stage_02_traffic FILE, for a results file in JSON\n";
        return 2;
    }
    try {
        attention::Problem problem;
        problem.Nq = problem.Nk = 512;
        problem.d = 64;
        problem.type = attention::DataType::fp32;
        const verify::Case the_case(problem);
        nlohmann::json points = nlohmann::json::array();
        for (int Bc : stage02::key_tiles) {
            const ladder::Rung rung = stage02::rung_a(Bc);
            const verify::Result result = verify::Run(rung, the_case).verify();
            if (!result.verified()) throw std::runtime_error("Bc = " + std::to_string(Bc) + ": " + result.reason());
            if (!result.counters) throw std::runtime_error("A GPU counts no bytes: run it with the software GPU.");
            std::uint64_t bytes = 0;
            for (const gpu::Traffic& traffic : result.counters->tensors)
                bytes += traffic.requested_read + traffic.requested_written;
            points.push_back({{"Bc", Bc}, {"M", 4 * Bc * problem.d}, {"elements", bytes / sizeof(float)}});
        }
        const nlohmann::json results = {{"command", "stage_02_traffic"},
                                        {"commit", ladder::build_commit()},
                                        {"problem", attention::describe(problem)},
                                        {"N", problem.Nk},
                                        {"d", problem.d},
                                        {"points", points}};
        ladder::OutputFile(argv[1]).commit(results.dump(2) + '\n');
    } catch (const std::exception& error) {
        std::cerr << "stage_02_traffic: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
