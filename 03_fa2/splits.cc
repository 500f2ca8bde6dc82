// The bytes of partial results that 03e leaves with 1 ... 64 splits, counted, and by the formula: stage_03_splits FILE writes
// them, and common/scripts/docs.py makes a table of the file.
#include <iostream>
#include <nlohmann/json.hpp>

#include "03_fa2/decode_stage.h"
#include "common/ladder/output_file.h"
#include "common/verify/run.h"

namespace {

/// One row of the table. Throws std::runtime_error if the rung is wrong or the machine counts nothing.
nlohmann::json row(const ladder::Rung& rung, attention::Problem problem, int splits) {
    problem.splits = splits;
    const verify::Case the_case(problem);
    const verify::Result result = verify::Run(rung, the_case).verify();
    if (!result.verified()) throw std::runtime_error(std::to_string(splits) + " splits: " + result.reason());
    if (!result.counters) throw std::runtime_error("A GPU counts no bytes: run it with the software GPU.");
    std::uint64_t partial = 0, keys_and_values = 0;
    for (const gpu::Traffic& traffic : result.counters->tensors) {
        if (traffic.tensor.ends_with("_partial")) partial += traffic.distinct_written;
        if (traffic.tensor == "K" || traffic.tensor == "V") keys_and_values += traffic.distinct_read;
    }
    return {{"splits", splits},
            {"partial", partial},
            {"formula", 4ll * (problem.d + 2) * splits * problem.B * problem.Hq * problem.Nq},
            {"keys_and_values", keys_and_values}};
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2 || std::string(argv[1]).starts_with("-")) {
        std::cerr << "Usage: stage_03_splits FILE, for a results file in JSON\n";
        return 2;
    }
    try {
        ladder::Registry registry;
        stage03::register_decode(registry);
        attention::Problem problem;
        problem.Hq = 32;
        problem.Hkv = 8;
        problem.Nk = 8192;
        problem.d = 128;
        problem.scale = attention::default_scale(problem.d);
        nlohmann::json rows = nlohmann::json::array();
        for (int splits = 1; splits <= 64; splits *= 2) rows.push_back(row(registry.rungs()[0], problem, splits));
        const nlohmann::json results = {
            {"commit", ladder::build_commit()}, {"problem", attention::describe(problem)}, {"rows", rows}};
        ladder::OutputFile(argv[1]).commit(results.dump(2) + '\n');
    } catch (const std::exception& error) {
        std::cerr << "stage_03_splits: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
