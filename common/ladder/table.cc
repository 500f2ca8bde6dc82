#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/ladder/arguments.h"
#include "common/ladder/report.h"

namespace ladder {
namespace {

const char* const outputs[] = {"O", "L", "dQ", "dK", "dV"};

struct Column {
    std::string head;
    bool text = false;  // aligned to the left
    std::vector<std::string> cells = {};
};

std::string format(const char* pattern, double value) {
    char text[64];
    std::snprintf(text, sizeof(text), pattern, value);
    return text;
}

// Three digits and a unit.
std::string with_unit(double value, double step, const std::vector<std::string>& units) {
    std::size_t unit = 0;
    for (; std::abs(value) >= step && unit + 1 < units.size(); ++unit) value /= step;
    const char* pattern = unit == 0 ? "%.0f" : value < 9.995 ? "%.2f" : value < 99.95 ? "%.1f" : "%.0f";
    return format(pattern, value) + units[unit];
}
std::string bytes_text(double bytes) { return with_unit(bytes, 1024.0, {" B", " KiB", " MiB", " GiB", " TiB"}); }
std::string count_text(double count) { return with_unit(count, 1000.0, {"", " k", " M", " G", " T", " P"}); }

// The error of one output as a part of its limit.
std::string error_text(const Row& row, const std::string& tensor) {
    for (const verify::Check& check : row.checks) {
        if (check.tensor != tensor) continue;
        if (check.error == 0.0) return "0";
        return format("%.2g", check.error / check.limit);
    }
    return "-";
}

double requested(const std::vector<gpu::Traffic>& bytes) {
    double sum = 0.0;
    for (const gpu::Traffic& traffic : bytes)
        sum += static_cast<double>(traffic.requested_read + traffic.requested_written);
    return sum;
}
double distinct(const std::vector<gpu::Traffic>& bytes) {
    double sum = 0.0;
    for (const gpu::Traffic& traffic : bytes)
        sum += static_cast<double>(traffic.distinct_read + traffic.distinct_written);
    return sum;
}

// The nearest row above of the same pass that is verified.
const Row* row_before(const Report& report, std::size_t n) {
    for (std::size_t m = n; m-- > 0;) {
        const Row& row = report.rows[m];
        if (row.pass == report.rows[n].pass && row.status == Status::verified) return &row;
    }
    return nullptr;
}

// Time of the row before over this one's on a GPU; on the emulator, requested bytes over those of the row before.
std::string ratio_text(const Report& report, std::size_t n) {
    const Row& row = report.rows[n];
    const Row* before = row_before(report, n);
    if (before == nullptr || row.status != Status::verified) return "-";
    if (!report.emulated) {
        return row.time_ms && before->time_ms ? format("%.3gx", *before->time_ms / *row.time_ms) : "-";
    }
    if (!row.bytes || !before->bytes || requested(*before->bytes) == 0.0) return "-";
    return format("%.3gx", requested(*row.bytes) / requested(*before->bytes));
}

template <class Text>
std::string or_dash(const std::optional<double>& value, Text text) {
    return value ? text(*value) : "-";
}

bool has_polynomials(const Report& report) {
    return std::any_of(report.rows.begin(), report.rows.end(),
                       [](const Row& row) { return row.polynomials.value_or(0) > 0; });
}

std::vector<Column> columns(const Report& report) {
    std::vector<Column> table = {{"rung", true}, {"pass", true}, {"machine", true}, {"status", true}};
    for (const char* tensor : outputs) table.push_back({tensor});
    for (const char* head : {"requested", "distinct", "FLOPs", "exps"}) table.push_back({head});
    if (has_polynomials(report)) table.push_back({"polynomials"});
    if (!report.emulated) {
        for (const char* head : {"ms", "TFLOP/s", "ceiling", "speed-up"}) table.push_back({head});
    } else {
        table.push_back({"bytes/before"});
    }
    for (std::size_t n = 0; n < report.rows.size(); ++n) {
        const Row& row = report.rows[n];
        std::vector<std::string> cells = {row.stage + row.letter + " " + row.name, name(row.pass), report.machine,
                                          row.status == Status::verified ? "verified"
                                          : row.status == Status::wrong  ? "WRONG"
                                                                         : "SKIPPED"};
        for (const char* tensor : outputs) cells.push_back(error_text(row, tensor));
        cells.push_back(row.bytes ? bytes_text(requested(*row.bytes)) : "-");
        cells.push_back(row.bytes && report.emulated ? bytes_text(distinct(*row.bytes)) : "-");
        cells.push_back(or_dash(row.flops, count_text));
        cells.push_back(or_dash(row.exponentials, count_text));
        if (has_polynomials(report)) cells.push_back(or_dash(row.polynomials, count_text));
        if (!report.emulated) {
            cells.push_back(or_dash(row.time_ms, [](double x) { return format("%.4g", x); }));
            cells.push_back(or_dash(row.tflops, [](double x) { return format("%.3g", x); }));
            cells.push_back(or_dash(row.ceiling_fraction, [](double x) { return format("%.2g %%", 100.0 * x); }));
        }
        cells.push_back(ratio_text(report, n));
        for (std::size_t c = 0; c < table.size(); ++c) table[c].cells.push_back(cells[c]);
    }
    return table;
}

void print_line(const std::vector<Column>& table, std::ostream& out, const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t c = 0; c < table.size(); ++c) {
        std::size_t width = table[c].head.size();
        for (const std::string& cell : table[c].cells) width = std::max(width, cell.size());
        const std::string space(width - cells[c].size(), ' ');
        line += (c ? "  " : "") + (table[c].text ? cells[c] + space : space + cells[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
}

void print_notes(const Report& report, std::ostream& out) {
    const auto any = [&](auto has) { return std::any_of(report.rows.begin(), report.rows.end(), has); };
    if (any([](const Row& row) { return !row.checks.empty(); })) {
        out << "O, L, dQ, dK, dV  error against the double-precision reference over what is allowed: right up to 1.\n";
    }
    if (any([](const Row& row) { return row.bytes.has_value(); })) {
        out << "requested         bytes of global memory asked for, read and written, all tensors and workspaces: "
            << (report.emulated ? "counted by the emulator.\n" : "the rung's own formula, not measured.\n")
            << "distinct          different bytes among them: "
            << (report.emulated ? "counted by the emulator.\n" : "not known on a GPU.\n");
    }
    if (any([](const Row& row) { return row.flops.has_value(); })) {
        out << "FLOPs             of the matrix products over visible (query, key) pairs: a formula, the same for "
               "all.\n"
            << "exps              exponentials, "
            << (report.emulated ? "counted by the emulator.\n" : "the rung's own formula, not measured.\n");
    }
    if (has_polynomials(report))
        out << "polynomials       exponentials by multiplications and additions; exps are those by special-function "
               "units.\n";
    if (report.emulated && any([](const Row& row) { return row.bytes.has_value(); })) {
        out << "bytes/before      requested bytes over those of the verified row above of the same pass.\n"
            << "Emulated: the kernels ran in software. There are no times, and nothing here is a statement on speed.\n";
    } else if (any([](const Row& row) { return row.time_ms.has_value(); })) {
        out << "ms                median of " << report.repetitions
            << " repetitions by CUDA events after warm-up, on the same operands (L2 warm as far as they fit).\n"
            << "ceiling           TFLOP/s over what mma.sync reaches with all operands in registers"
            << (report.mma_sync_tflops ? ", in this run " + format("%.0f", *report.mma_sync_tflops) + " TFLOP/s.\n"
                                       : "; -: not measured, or fp32.\n")
            << "speed-up          time of the verified row above of the same pass over this one's.\n";
    }
}

}  // namespace

const char* name(Status status) {
    return status == Status::verified ? "verified" : status == Status::wrong ? "wrong" : "skipped";
}

const char* name(Source source) { return source == Source::counted ? "counted" : "modelled"; }

int exit_status(const Report& report) {
    const auto has = [&](Status status) {
        return std::any_of(report.rows.begin(), report.rows.end(),
                           [&](const Row& row) { return row.status == status; });
    };
    if (has(Status::wrong)) return 1;
    return has(Status::verified) ? 0 : 3;
}

void print_table(const Report& report, std::ostream& out) {
    out << attention::describe(report.problem) << ", input " << report.input << ", seed " << report.seed << "\n\n";
    const std::vector<Column> table = columns(report);
    std::vector<std::string> heads;
    for (const Column& column : table) heads.push_back(column.head);
    print_line(table, out, heads);
    for (std::size_t n = 0; n < report.rows.size(); ++n) {
        std::vector<std::string> cells;
        for (const Column& column : table) cells.push_back(column.cells[n]);
        print_line(table, out, cells);
    }
    out << '\n';
    print_notes(report, out);
    int count[3] = {};
    for (const Row& row : report.rows) {
        ++count[static_cast<int>(row.status)];
        if (row.status == Status::verified) continue;
        out << (row.status == Status::wrong ? "WRONG   " : "SKIPPED ") << row.stage << row.letter << ' ' << row.name
            << ", " << name(row.pass) << ": " << row.reason << '\n';
    }
    out << count[0] << " verified, " << count[1] << " wrong, " << count[2] << " skipped.\n";
}

}  // namespace ladder
