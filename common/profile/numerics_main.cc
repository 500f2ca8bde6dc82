// What polynomials and conditional rescaling cost in accuracy, and what the latter saves: numerics FILE writes it, and
// common/plots/numerics.py draws it. Computed by the kernels' own functions, on any machine.
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/attention/numerics/exp2_error.h"
#include "common/attention/numerics/online_row.h"
#include "common/ladder/output_file.h"
#include "common/ladder/registry.h"

namespace {

using namespace attention;
using namespace attention::numerics;
using nlohmann::json;

/// The best that a function to float can do.
float nearest(float x) { return static_cast<float>(std::exp2(static_cast<double>(x))); }

template <class F>
void for_each_way(F f) {
    f("degree 2", exp2_polynomial<2>);
    f("degree 3", exp2_polynomial<3>);
    f("degree 4", exp2_polynomial<4>);
    f("degree 5", exp2_polynomial<5>);
    f("nearest float", nearest);
}

/// Largest errors over every 31st float of [-126, 8].
json largest_errors() {
    json result = json::array();
    for_each_way([&](const char* name, auto power) {
        const Exp2Error below = exp2_error(-0.0f, -126, 31, power), above = exp2_error(0, 8, 31, power);
        result.push_back({{"name", name},
                          {"floats", below.floats + above.floats},
                          {"relative", std::max(below.relative, above.relative)},
                          {"bf16", std::max(below.bf16, above.bf16)}});
    });
    return result;
}

/// The error, with its sign, along [-2, 0].
json curves() {
    json x = json::array(), result = json::array();
    for (int i = -256; i <= 0; ++i) x.push_back(i / 128.0);
    const auto short_number = [](double error) { return std::round(error * 1e11) / 1e11; };
    for_each_way([&](const char* name, auto power) {
        json relative = json::array(), bf16 = json::array();
        for (const json& at : x) {
            const float value = power(at.get<float>());
            const double exact = std::exp2(at.get<double>());
            relative.push_back(short_number(value / exact - 1));
            bf16.push_back(short_number(gpu::to_float(gpu::cvt_rn<gpu::bf16>(value)) / exact - 1));
        }
        result.push_back({{"name", name}, {"relative", relative}, {"bf16", bf16}});
    });
    return {{"x", x}, {"ways", result}};
}

/// |O - exact| / |exact| in 2-norm.
double error_of(const Outcome& outcome, const Outcome& exact) {
    double difference = 0, size = 0;
    for (std::size_t n = 0; n < exact.O.size(); ++n) {
        difference += (outcome.O[n] - exact.O[n]) * (outcome.O[n] - exact.O[n]);
        size += exact.O[n] * exact.O[n];
    }
    return std::sqrt(difference / size);
}

/// Errors of O, the largest of all rows, and how often states are multiplied: of all rows and blocks but the first, and of all warps of
/// 32 rows and blocks, where a warp does it if one of its rows must.
json rescaling(const char* law, const Rows& rows, const std::vector<Outcome>& exact, float tau) {
    double bf16 = 0, fp16 = 0;
    float largest_weight = 0;
    int of_rows = 0, of_warps = 0, blocks = 0;
    for (int first = 0; first < rows.rows; first += 32) {
        std::vector<bool> warp;
        for (int i = first; i < first + 32; ++i) {
            const Outcome outcome = online_row<gpu::bf16, Exp2Policy<3, 4>>(rows.row(i), rows.V, tau);
            bf16 = std::max(bf16, error_of(outcome, exact[i]));
            fp16 =
                std::max(fp16, error_of(online_row<gpu::fp16, Exp2Policy<3, 4>>(rows.row(i), rows.V, tau), exact[i]));
            largest_weight = std::max(largest_weight, outcome.largest_weight);
            blocks = static_cast<int>(outcome.rescaled.size());
            warp.resize(blocks);
            for (int block = 1; block < blocks; ++block) {
                of_rows += outcome.rescaled[block];
                warp[block] = warp[block] || outcome.rescaled[block];
            }
        }
        of_warps += static_cast<int>(std::count(warp.begin(), warp.end(), true));
    }
    return {{"law", law},
            {"tau", tau},
            {"rows", of_rows / double(rows.rows * (blocks - 1))},
            {"warps", of_warps * 32 / double(rows.rows * (blocks - 1))},
            {"bf16", bf16},
            {"fp16", fp16},
            {"largest_weight", largest_weight}};
}

constexpr int row_count = 64, key_count = 8192;

json rescaling() {
    const double rising = 2 * 64 / (128 * double(gpu::log2_e));  // by 2 from block to block
    const std::pair<const char*, Rows> laws[] = {
        {"normal", draw_rows(row_count, key_count, InputLaw::normal, 0.125, 1)},
        {"normal, 8 times as wide", draw_rows(row_count, key_count, InputLaw::normal, 1, 1)},
        {"outliers", draw_rows(row_count, key_count, InputLaw::outliers, 0.125, 1)},
        {"rising by 2 a block", draw_rows(row_count, key_count, InputLaw::rising, rising, 1)}};
    json result = json::array();
    for (const auto& [name, rows] : laws) {
        std::vector<Outcome> exact;
        for (int i = 0; i < rows.rows; ++i) exact.push_back(exact_row(rows.row(i), rows.V));
        for (float tau : {0.0f, 1.0f, 2.0f, 4.0f, 6.0f, 8.0f, 10.0f, 12.0f, 15.0f})
            result.push_back(rescaling(name, rows, exact, tau));
    }
    return result;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2 || std::string(argv[1]).starts_with("-")) {
        std::cerr << "Usage: numerics FILE, for a results file in JSON\n";
        return 2;
    }
    try {
        const json results = {
            {"machine", "any"},
            {"command", "numerics"},
            {"commit", ladder::build_commit()},
            {"problem", std::to_string(row_count) + " rows of " + std::to_string(key_count) +
                            " keys in blocks of 128, d=64, an eighth of the exponentials by polynomial"},
            {"exp2", largest_errors()},
            {"curves", curves()},
            {"rescaling", rescaling()}};
        ladder::OutputFile(argv[1]).commit(results.dump() + '\n');
    } catch (const std::exception& error) {
        std::cerr << "numerics: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
