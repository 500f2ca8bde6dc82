#include <cmath>
#include <nlohmann/json.hpp>

#include "common/ladder/arguments.h"
#include "common/ladder/report.h"

namespace ladder {
namespace {

using nlohmann::json;

json or_null(const std::optional<double>& value) {
    return value && std::isfinite(*value) ? json(*value) : json(nullptr);
}

std::vector<int> lengths(const std::vector<int>& cu) {
    std::vector<int> result;
    for (std::size_t b = 0; b + 1 < cu.size(); ++b) result.push_back(cu[b + 1] - cu[b]);
    return result;
}

}  // namespace

json to_json(const attention::Problem& p, const std::string& input) {
    json result = {{"B", p.B},
                   {"Hq", p.Hq},
                   {"Hkv", p.Hkv},
                   {"Nq", p.Nq},
                   {"Nk", p.Nk},
                   {"d", p.d},
                   {"dtype", attention::name(p.type)},
                   {"mask", mask_name(p)},
                   {"scale", p.scale},
                   {"softcap", p.softcap},
                   {"alibi", p.alibi},
                   {"dropout", p.dropout},
                   {"input", input},
                   {"seqlens", nullptr},
                   {"page_size", p.page_size},
                   {"splits", p.splits},
                   {"deterministic", p.deterministic},
                   {"text", attention::describe(p)}};
    if (p.packed()) result["seqlens"] = {{"queries", lengths(p.cu_q)}, {"keys", lengths(p.cu_k)}};
    return result;
}

namespace {

json bytes_json(const std::vector<gpu::Traffic>& bytes, Source source) {
    const auto if_counted = [&](std::uint64_t count) {
        return source == Source::counted ? json(count) : json(nullptr);
    };
    json tensors = json::object();
    for (const gpu::Traffic& traffic : bytes) {
        tensors[traffic.tensor] = {{"requested_read", traffic.requested_read},
                                   {"requested_written", traffic.requested_written},
                                   {"distinct_read", if_counted(traffic.distinct_read)},
                                   {"distinct_written", if_counted(traffic.distinct_written)}};
    }
    return {{"source", name(source)}, {"tensors", tensors}};
}

}  // namespace

json to_json(const Row& row, Source source) {
    json errors = json::object();
    for (const verify::Check& check : row.checks) {
        errors[check.tensor] = {{"error", or_null(check.error)}, {"limit", or_null(check.limit)}};
    }
    return {{"stage", row.stage},
            {"rung", row.letter},
            {"name", row.name},
            {"pass", name(row.pass)},
            {"status", name(row.status)},
            {"reason", row.reason.empty() ? json(nullptr) : json(row.reason)},
            {"errors", errors},
            {"bytes", row.bytes ? bytes_json(*row.bytes, source) : json(nullptr)},
            {"flops", or_null(row.flops)},
            {"exps", or_null(row.exponentials)},
            {"polynomials", or_null(row.polynomials)},
            {"time_ms", or_null(row.time_ms)},
            {"tflops", or_null(row.tflops)},
            {"ceiling_fraction", or_null(row.ceiling_fraction)}};
}

json to_json(const Report& report) {
    json rows = json::array();
    for (const Row& row : report.rows) rows.push_back(to_json(row, report.source()));
    return {{"schema", 1},
            {"machine", report.machine},
            {"build", report.build},
            {"commit", report.commit},
            {"command", report.command},
            {"clock_mhz", report.clock_mhz > 0 ? json(report.clock_mhz) : json(nullptr)},
            {"seed", report.seed},
            {"problem", to_json(report.problem, report.input)},
            {"mma_sync_tflops", or_null(report.mma_sync_tflops)},
            {"rows", rows}};
}

}  // namespace ladder
