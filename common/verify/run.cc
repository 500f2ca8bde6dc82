#include "common/verify/run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "common/attention/parallel.h"
#include "common/reference/reference.h"
#include "common/verify/storage.h"

namespace verify {
namespace {

using attention::DataType;
using attention::HostTensor;
using attention::Problem;
using ladder::Pass;

constexpr std::byte poison{0xFF};

HostTensor shape(const Problem& problem, int H, int N, const std::vector<int>& cu, int d) {
    return {problem.B, H, N, d, cu, {}};
}
HostTensor query_shape(const Problem& problem) {
    return shape(problem, problem.Hq, problem.Nq, problem.cu_q, problem.d);
}
HostTensor key_shape(const Problem& problem) {
    return shape(problem, problem.Hkv, problem.Nk, problem.cu_k, problem.d);
}
// Of K and V as they lie in memory. A pool of pages looks like a batch of short sequences; before there is a page table, it is
// taken to be as large as that may become.
HostTensor key_memory(const Problem& problem) {
    if (problem.page_size == 0) return key_shape(problem);
    if (problem.page_table.empty())
        return {problem.B, problem.Hkv, problem.page_columns() * problem.page_size, problem.d, {}, {}};
    return {problem.pages, problem.Hkv, problem.page_size, problem.d, {}, {}};
}
HostTensor row_shape(const Problem& problem) { return shape(problem, problem.Hq, problem.Nq, problem.cu_q, 1); }

// Rows of one head over all sequences.
double rows_of_head(const HostTensor& tensor) {
    return tensor.cu.empty() ? static_cast<double>(tensor.B) * tensor.N : tensor.cu.back();
}

// Elements between the starts of neighbouring rows where rows have gaps.
int padded(const HostTensor& tensor, DataType type) { return tensor.d + 16 / attention::bytes(type); }

// Heads that have memory of their own.
int stored_heads(const HostTensor& tensor, Layout layout, bool shared) {
    return shared && layout == Layout::shared_kv ? 1 : tensor.H;
}

double elements(const HostTensor& tensor, DataType type, Layout layout, bool shared) {
    const double rows = rows_of_head(tensor) * stored_heads(tensor, layout, shared);
    switch (layout) {
        case Layout::dense:
        case Layout::shared_kv:
            return rows * tensor.d;
        case Layout::misaligned:
            return rows * tensor.d + 1;
        case Layout::odd_rows:
            return rows * (tensor.d + 1);
        case Layout::strided:
        case Layout::reversed:
            return (rows + 1) * padded(tensor, type);
    }
    return 0.0;
}

// Where element (0, 0, 0, 0) is, and the strides. token_major: the heads of a token lie side by side.
ladder::Operand place(const HostTensor& tensor, DataType type, Layout layout, bool shared, bool token_major) {
    const std::int64_t H = tensor.H, N = tensor.N;
    const bool packed = !tensor.cu.empty();
    ladder::Operand operand;
    operand.columns = tensor.d;
    if (layout == Layout::strided || layout == Layout::reversed) {
        operand.first = operand.head_stride = padded(tensor, type);
        operand.row_stride = H * operand.head_stride;
        operand.batch_stride = packed ? 0 : N * operand.row_stride;
        if (layout == Layout::reversed) {
            const auto rows = static_cast<std::int64_t>(rows_of_head(tensor));
            operand.first += std::max<std::int64_t>(rows - 1, 0) * operand.row_stride;
            operand.row_stride = -operand.row_stride;
            operand.batch_stride = -operand.batch_stride;
        }
        return operand;
    }
    const std::int64_t heads = stored_heads(tensor, layout, shared);
    const std::int64_t row = layout == Layout::odd_rows ? tensor.d + 1 : tensor.d;
    operand.first = layout == Layout::misaligned ? 1 : 0;
    operand.row_stride = token_major ? heads * row : row;
    operand.head_stride = token_major ? row : N * row;
    operand.batch_stride = packed ? 0 : heads * N * row;
    if (heads < H) operand.head_stride = 0;
    return operand;
}

// Calls visit(b, h, i) for every row.
template <class Visit>
void for_each_row(const HostTensor& tensor, Visit visit) {
    for (int b = 0; b < tensor.B; ++b) {
        for (int h = 0; h < tensor.H; ++h) {
            for (int i = 0; i < tensor.length(b); ++i) visit(b, h, i);
        }
    }
}

// (b, h, i, c), as failures name an element.
std::string place_name(const std::string& tensor, int b, int h, int i, int c) {
    return tensor + "[b=" + std::to_string(b) + ", h=" + std::to_string(h) + ", row=" + std::to_string(i) +
           ", column=" + std::to_string(c) + "]";
}

// Calls visit(b, h, i) for every row; of large tensors for several heads at once.
template <class Visit>
void for_each_row_at_once(const HostTensor& tensor, Visit visit) {
    const std::int64_t heads = std::int64_t(tensor.B) * tensor.H;
    const double operations = 10.0 * heads * tensor.N * tensor.d;  // about ten an element
    attention::in_parallel(static_cast<int>(heads), operations, [&](int head) {
        const int b = head / tensor.H, h = head % tensor.H;
        for (int i = 0; i < tensor.length(b); ++i) visit(b, h, i);
    });
}

// L of a query that is not compared: so large that its weights, and all that it adds to gradients, are 0.
constexpr float no_weight = 1e30f;

// Rows of O and L that a backward needs to be right where it is compared: all of them while that is affordable.
std::vector<HeadRows> rows_to_feed(const Problem& problem) {
    constexpr double affordable = 1e11;  // multiply-adds of S: seconds
    const double cost = rows_of_head(query_shape(problem)) * problem.Hq * problem.Nk * problem.d;
    std::map<std::pair<int, int>, std::set<int>> needed;
    const auto need_all = [&](int b, int h) {
        for (int i = 0; i < problem.queries(b); ++i) needed[{b, h}].insert(i);
    };
    if (cost <= affordable) {
        for (int b = 0; b < problem.B; ++b) {
            for (int h = 0; h < problem.Hq; ++h) need_all(b, h);
        }
    } else {
        for (const auto& [b, h, rows] : sample_queries(problem, {})) needed[{b, h}].insert(rows.begin(), rows.end());
        for (const auto& [b, h_kv, rows] : sample_keys(problem, {})) {
            for (int h = h_kv * problem.group(); h < (h_kv + 1) * problem.group(); ++h) need_all(b, h);
        }
    }
    std::vector<HeadRows> heads;
    for (const auto& [head, rows] : needed) heads.push_back({head.first, head.second, {rows.begin(), rows.end()}});
    return heads;
}

// Every key/value head becomes a copy of head 0, as they are where one memory serves all.
void share_heads(HostTensor& tensor) {
    for_each_row(tensor, [&](int b, int h, int i) { std::copy_n(tensor.row(b, 0, i), tensor.d, tensor.row(b, h, i)); });
}

attention::Inputs drawn_inputs(const Problem& problem, const Setup& setup) {
    attention::validate(problem);
    return attention::make_inputs(problem, setup.law, setup.seed);
}

// An operand of a pass: its name, shape and type, and whether the rung writes it.
struct Wanted {
    const char* name;
    ladder::Operand ladder::Operands::*operand;
    HostTensor shape, memory;  // memory: shape, or the pool that the rows lie in
    DataType type;
    bool output;
    bool is_key_or_value = false;

    double elements(Layout layout) const { return verify::elements(memory, type, layout, is_key_or_value); }
};

std::vector<Wanted> wanted(const Problem& problem, Pass pass) {
    using ladder::Operands;
    const HostTensor queries = query_shape(problem), keys = key_shape(problem), rows = row_shape(problem);
    const HostTensor cache = key_memory(problem);
    const DataType type = problem.type;
    const bool backward = pass == Pass::backward;
    std::vector<Wanted> list = {{"Q", &Operands::Q, queries, queries, type, false},
                                {"K", &Operands::K, keys, cache, type, false, true},
                                {"V", &Operands::V, keys, cache, type, false, true},
                                {"O", &Operands::O, queries, queries, type, !backward},
                                {"L", &Operands::L, rows, rows, DataType::fp32, !backward}};
    if (backward) {
        list.push_back({"dO", &Operands::dO, queries, queries, type, false});
        list.push_back({"dQ", &Operands::dQ, queries, queries, type, true});
        list.push_back({"dK", &Operands::dK, keys, keys, type, true});
        list.push_back({"dV", &Operands::dV, keys, keys, type, true});
    }
    return list;
}

// What an input operand holds.
const HostTensor& values(const Case& the_case, std::string_view name) {
    if (name == "Q") return the_case.inputs().Q;
    if (name == "K") return the_case.inputs().K;
    if (name == "V") return the_case.inputs().V;
    if (name == "dO") return the_case.inputs().dO;
    return name == "O" ? the_case.O() : the_case.L();
}

std::vector<ladder::Workspace> workspaces(const ladder::Rung& rung, const Problem& problem) {
    return rung.workspaces ? rung.workspaces(problem) : std::vector<ladder::Workspace>{};
}

double operand_bytes(const ladder::Rung& rung, const Problem& problem, Layout layout) {
    double bytes = problem.packed() ? 2.0 * sizeof(int) * (problem.B + 1) : 0.0;
    bytes += double(sizeof(int)) * problem.B * problem.page_columns();
    for (const Wanted& operand : wanted(problem, rung.pass))
        bytes += operand.elements(layout) * attention::bytes(operand.type);
    return bytes;
}

double workspace_bytes(const ladder::Rung& rung, const Problem& problem) {
    double bytes = 0.0;
    for (const ladder::Workspace& workspace : workspaces(rung, problem)) bytes += static_cast<double>(workspace.bytes);
    return bytes;
}

std::string in_units(double bytes) {
    const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int unit = 0;
    for (; bytes >= 1024.0 && unit < 6; ++unit) bytes /= 1024.0;
    char text[64];
    std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
    return text;
}

plain::Stores precision(ladder::Stores stores) {
    return stores == ladder::Stores::scores ? plain::Stores::scores : plain::Stores::weights;
}

}  // namespace

const char* name(Layout layout) {
    switch (layout) {
        case Layout::dense:
            return "dense";
        case Layout::strided:
            return "strided";
        case Layout::reversed:
            return "reversed";
        case Layout::shared_kv:
            return "shared key/value heads";
        case Layout::misaligned:
            return "misaligned";
        case Layout::odd_rows:
            return "odd rows";
    }
    return "";
}

// Case --------------------------------------------------------------------------------------------------------------

Case::Case(Problem problem, Setup setup) : Case(problem, drawn_inputs(problem, setup), setup) {}

Case::Case(Problem problem, attention::Inputs inputs, Setup setup)
    : problem_(std::move(problem)), setup_(std::move(setup)), inputs_(std::move(inputs)) {
    attention::validate(problem_);
    if (problem_.page_size > 0 && problem_.page_table.empty()) attention::draw_page_table(problem_, setup_.seed);
    if (setup_.layout_of("K") == Layout::shared_kv) share_heads(inputs_.K);
    if (setup_.layout_of("V") == Layout::shared_kv) share_heads(inputs_.V);
}

const HostTensor& Case::O() const {
    if (!O_) compute_forward();
    return *O_;
}

const HostTensor& Case::L() const {
    if (!L_) compute_forward();
    return *L_;
}

void Case::compute_forward() const {
    O_ = attention::query_tensor(problem_, 0.0f);
    L_ = attention::row_tensor(problem_, no_weight);
    const std::vector<HeadRows> heads = rows_to_feed(problem_);
    double multiply_adds = 0.0;  // of many heads at once; few leave the cores to the blocks of each
    if (heads.size() >= std::thread::hardware_concurrency())
        for (const HeadRows& head : heads) multiply_adds += double(head.rows.size()) * problem_.Nk * problem_.d;
    attention::in_parallel(static_cast<int>(heads.size()), multiply_adds, [&](int n) {
        const auto& [b, h, rows] = heads[n];
        const reference::Forward exact = reference::forward(problem_, inputs_, b, h, rows);
        for (std::size_t r = 0; r < rows.size(); ++r) {
            float* const O = O_->row(b, h, rows[r]);
            for (int c = 0; c < problem_.d; ++c) {
                O[c] = attention::round_to(problem_.type, static_cast<float>(exact.O.row(static_cast<int>(r))[c]));
            }
            *L_->row(b, h, rows[r]) = static_cast<float>(exact.L[r]);
        }
    });
}

// Memory ------------------------------------------------------------------------------------------------------------

double device_bytes(const ladder::Rung& rung, const Problem& problem, Layout layout) {
    return operand_bytes(rung, problem, layout) + workspace_bytes(rung, problem);
}

std::optional<std::string> too_large(const ladder::Rung& rung, const Problem& problem, const gpu::Device& device) {
    // A head without rows has no memory and takes its time all the same: a CTA of the emulator, a call of the reference.
    const std::int64_t heads = std::int64_t(problem.B) * problem.Hq, most = device.emulated ? 1 << 18 : 1 << 24;
    if (heads > most) {
        return "does at most " + std::to_string(most) + " heads of all sequences on " +
               (device.emulated ? "the emulator" : "a GPU") + ", and " + attention::describe(problem) +
               " has B Hq = " + std::to_string(heads);
    }
    double needed = operand_bytes(rung, problem, Layout::dense);
    if (device.emulated) {
        const double queries = rows_of_head(query_shape(problem)) * problem.Hq,
                     keys = rows_of_head(key_shape(problem)) * problem.Hkv;
        needed += sizeof(float) * 2.0 * (queries + keys) * problem.d;
    }
    const double free = static_cast<double>(device.free_bytes);
    // A rung may look at every row to say what else it needs: not at more rows than there can be.
    if (needed <= free) needed += workspace_bytes(rung, problem);
    if (needed <= free) return std::nullopt;
    return "needs " + in_units(needed) + " of memory for " + attention::describe(problem) + ", and " + in_units(free) +
           " are free" + (device.emulated ? "" : " on " + device.name);
}

// Result ------------------------------------------------------------------------------------------------------------

bool Result::verified() const {
    return !refused && !fault && !checks.empty() &&
           std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.passed; });
}

std::string Result::reason() const {
    if (refused) return *refused;
    if (fault) return *fault;
    std::string text;
    for (const Check& check : checks) {
        if (check.passed) continue;
        char numbers[80];
        std::snprintf(numbers, sizeof(numbers), ": error %.3g, limit %.3g, ", check.error, check.limit);
        text += (text.empty() ? "" : "; ") + check.tensor + numbers + check.where;
    }
    return checks.empty() ? "Nothing was compared." : text;
}

// Run ---------------------------------------------------------------------------------------------------------------

struct Run::Placed {
    std::string name;
    HostTensor shape;
    DataType type;
    bool output;
    ladder::Operand operand;
    gpu::Buffer buffer;
    std::vector<std::byte> image;  // what was written to the buffer: poison where nothing was
    const Problem* paged;          // whose page table says where the rows are; null: they lie as `operand` says

    std::size_t size() const { return attention::bytes(type); }

    // First byte of a row in the buffer.
    std::size_t offset(int b, int h, int i) const {
        std::int64_t batch = b, row = shape.cu.empty() ? i : std::int64_t(shape.cu[b]) + i;
        if (paged != nullptr) {
            batch = paged->page_table[std::size_t(b) * paged->page_columns() + i / paged->page_size];
            row = i % paged->page_size;
        }
        return (operand.first + batch * operand.batch_stride + h * operand.head_stride + row * operand.row_stride) *
               size();
    }

    std::vector<std::byte> read() const {
        std::vector<std::byte> bytes(image.size());
        buffer.read(bytes.data(), bytes.size());
        return bytes;
    }

    // The element that holds this byte, or the gap that does.
    std::string place_of(std::size_t byte) const {
        std::string found = "byte " + std::to_string(byte) + " of " + name + ", between its rows";
        for_each_row(shape, [&](int b, int h, int i) {
            const std::size_t begin = offset(b, h, i);
            if (begin <= byte && byte < begin + shape.d * size()) {
                found = place_name(name, b, h, i, static_cast<int>((byte - begin) / size()));
            }
        });
        return found;
    }
};

Run::Run(const ladder::Rung& rung, const Case& the_case) : rung_(rung), case_(the_case) {}
Run::~Run() = default;

void Run::allocate() {
    const Problem& problem = case_.problem();
    operands_ = {};
    placed_.clear();
    numbers_.clear();
    for (const Wanted& w : wanted(problem, rung_.pass)) {
        const Layout layout = case_.setup().layout_of(w.name);
        const std::size_t bytes = static_cast<std::size_t>(w.elements(layout)) * attention::bytes(w.type);
        const bool paged = w.is_key_or_value && problem.page_size > 0;
        Placed& placed = placed_.emplace_back(
            Placed{w.name, w.shape, w.type, w.output,
                   place(w.memory, w.type, layout, w.is_key_or_value, paged || problem.packed()),
                   gpu::Buffer(w.name, bytes), std::vector(bytes, poison), paged ? &problem : nullptr});
        placed.operand.buffer = &placed.buffer;
        operands_.*w.operand = placed.operand;
        if (w.output) continue;
        const HostTensor& tensor = values(case_, w.name);
        for_each_row_at_once(w.shape, [&](int b, int h, int i) {
            store(w.type, tensor.row(b, h, i), w.shape.d, placed.image.data() + placed.offset(b, h, i));
        });
        placed.buffer.write(placed.image.data(), bytes);
    }
    for (const ladder::Workspace& workspace : workspaces(rung_, problem)) {
        operands_.workspaces.emplace_back(workspace.name, workspace.bytes);
    }
    const auto upload = [&](const char* name, const std::vector<int>& numbers) {
        gpu::Buffer& buffer = numbers_.emplace_back(name, numbers.size() * sizeof(int));
        buffer.write(numbers.data(), buffer.bytes());
        return &buffer;
    };
    if (problem.packed()) {
        operands_.cu_q = static_cast<const int*>(upload("cu_q", problem.cu_q)->data());
        operands_.cu_k = static_cast<const int*>(upload("cu_k", problem.cu_k)->data());
    }
    if (problem.page_size > 0) {
        const int columns = problem.page_columns();
        operands_.page_table = {upload("page_table", problem.page_table), 0, 0, columns, 0, columns};
    }
}

std::optional<std::string> Run::broken_rule() const {
    const auto guards = [](const gpu::Buffer& buffer) -> std::optional<std::string> {
        if (buffer.guards_intact()) return std::nullopt;
        return "The rung wrote outside of " + buffer.name() + ": a guard zone beside it has changed.";
    };
    for (const Placed& placed : placed_) {
        if (auto broken = guards(placed.buffer)) return broken;
    }
    for (const gpu::Buffer& workspace : operands_.workspaces) {
        if (auto broken = guards(workspace)) return broken;
    }
    for (const gpu::Buffer& numbers : numbers_) {
        if (auto broken = guards(numbers)) return broken;
    }
    for (const Placed& placed : placed_) {
        std::vector<std::byte> bytes = placed.read();
        std::optional<std::string> unwritten;
        if (placed.output) {
            // An element is unwritten if every byte is poison; NaN from arithmetic has other bits. Rows are poisoned
            // again in this copy, so that what is left to compare are the gaps.
            for_each_row(placed.shape, [&](int b, int h, int i) {
                const auto row = bytes.begin() + placed.offset(b, h, i);
                for (int c = 0; c < placed.shape.d && !unwritten; ++c) {
                    const auto element = row + c * placed.size();
                    if (std::all_of(element, element + placed.size(), [](std::byte x) { return x == poison; })) {
                        unwritten = place_name(placed.name, b, h, i, c) + " was not written.";
                    }
                }
                std::fill(row, row + placed.shape.d * placed.size(), poison);
            });
        }
        const auto changed = std::mismatch(bytes.begin(), bytes.end(), placed.image.begin()).first;
        if (changed != bytes.end()) {
            const std::string place = placed.place_of(changed - bytes.begin());
            return (placed.output ? "The rung wrote to " : "The rung changed its input at ") + place + ".";
        }
        if (unwritten) return unwritten;
    }
    return std::nullopt;
}

HostTensor Run::output(const std::string& name) const {
    const auto placed = std::find_if(placed_.begin(), placed_.end(), [&](const Placed& p) { return p.name == name; });
    const std::vector<std::byte> bytes = placed->read();
    HostTensor tensor = placed->shape;
    tensor.values.resize(static_cast<std::size_t>(rows_of_head(tensor)) * tensor.H * tensor.d);
    for_each_row_at_once(tensor, [&](int b, int h, int i) {
        load(placed->type, bytes.data() + placed->offset(b, h, i), tensor.d, tensor.row(b, h, i));
    });
    return tensor;
}

std::vector<Check> Run::compare() const {
    const Problem& problem = case_.problem();
    const plain::Stores stores = precision(rung_.stores);
    return rung_.pass == Pass::backward
               ? check_backward(problem, case_.inputs(), output("dQ"), output("dK"), output("dV"), stores)
               : check_forward(problem, case_.inputs(), output("O"), output("L"), stores, {}, rung_.exponential_error);
}

Result Run::verify() {
    Result result;
    if (rung_.refuses) result.refused = rung_.refuses(case_.problem());
    if (result.refused) return result;
    try {
        allocate();
        gpu::reset_counters();
        ladder::require_layout(rung_, operands_, case_.problem().type);
        rung_.launch(case_.problem(), operands_);
        gpu::synchronize();
        result.counters = gpu::counters();
        result.fault = broken_rule();
        if (!result.fault) result.checks = compare();
    } catch (const ladder::Refused& refusal) {
        result.refused = refusal.what();
    } catch (const gpu::NotBuilt& refusal) {
        result.refused = refusal.what();
    } catch (const gpu::Error& error) {
        result.fault = error.what();
    }
    return result;
}

void Run::launch() { rung_.launch(case_.problem(), operands_); }

std::string failure(const ladder::Rung& rung, const Case& the_case) {
    const Result result = Run(rung, the_case).verify();
    if (result.verified()) return "";
    const Setup& setup = the_case.setup();
    return "Stage " + rung.stage + ", rung " + rung.letter + " " + rung.name + ", " + ladder::name(rung.pass) +
           ", on " + attention::describe(the_case.problem()) +
           (setup.layout == Layout::dense
                ? ""
                : " (" + setup.only + (setup.only.empty() ? "" : " ") + name(setup.layout) + ")") +
           (result.refused ? ", refused: " : ": ") + result.reason();
}

std::string failure(const ladder::Rung& rung, const Problem& problem, const Setup& setup) {
    return failure(rung, Case(problem, setup));
}

}  // namespace verify
