#include "common/ladder/list.h"

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

namespace ladder {
namespace {

using attention::DataType;
using attention::Problem;

constexpr DataType types[] = {DataType::fp32, DataType::fp16, DataType::bf16};
constexpr int dimensions[] = {1, 8, 16, 32, 40, 64, 72, 80, 96, 128, 192, 256};

Problem plain_problem(DataType type, int d) {
    Problem problem;
    problem.Nq = problem.Nk = 64;
    problem.type = type;
    problem.d = d;
    problem.scale = attention::default_scale(d);
    return problem;
}

bool does(const Rung& rung, const Problem& problem) { return !rung.refuses || !rung.refuses(problem); }

std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
    return text;
}

std::vector<int> dimensions_done(const Rung& rung, DataType type) {
    std::vector<int> done;
    std::copy_if(std::begin(dimensions), std::end(dimensions), std::back_inserter(done),
                 [&](int d) { return does(rung, plain_problem(type, d)); });
    return done;
}

std::string in_words(const std::vector<int>& done) {
    if (done.size() == std::size(dimensions)) return "1 to 256";
    std::vector<std::string> words;
    for (int d : done) words.push_back(std::to_string(d));
    return joined(words);
}

// "fp16, bf16: d 64, 128": types that do the same dimensions stand together; why, where there is none.
std::string types_and_dimensions(const Rung& rung) {
    std::vector<std::pair<std::vector<std::string>, std::vector<int>>> groups;
    for (DataType type : types) {
        const std::vector<int> done = dimensions_done(rung, type);
        if (done.empty()) continue;
        const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.second == done; });
        if (same != groups.end()) same->first.push_back(attention::name(type));
        else groups.push_back({{attention::name(type)}, done});
    }
    std::string text;
    for (const auto& [names, done] : groups) {
        text += (text.empty() ? "" : "; ") + joined(names) + ": d " + in_words(done);
    }
    return text.empty() ? "none: it " + *rung.refuses(plain_problem(DataType::fp16, 64)) : text;
}

// Which extras the rung does on a problem that it does without them.
std::string extras(const Rung& rung) {
    const std::vector<std::pair<std::string, std::function<void(Problem&)>>> all = {
        {"causal", [](Problem& p) { p.window_right = 0; }},
        {"window", [](Problem& p) { p.window_left = p.window_right = 16; }},
        {"Nq != Nk", [](Problem& p) { p.Nq = 17; }},
        {"GQA", [](Problem& p) { p.Hq = 4, p.Hkv = 2; }},
        {"packed",
         [](Problem& p) {
             p.B = 2, p.cu_q = p.cu_k = {0, 64, 100};
         }},
        {"dropout", [](Problem& p) { p.dropout = 0.1f; }},
        {"softcap", [](Problem& p) { p.softcap = 50.0f; }},
        {"ALiBi", [](Problem& p) { p.alibi = true; }},
        {"pages", [](Problem& p) { p.page_size = 16; }},
    };
    std::vector<std::string> done;
    for (const auto& [name, add] : all) {
        bool any = false;
        for (DataType type : types) {
            for (int d : dimensions_done(rung, type)) {
                Problem problem = plain_problem(type, d);
                add(problem);
                any = any || does(rung, problem);
            }
        }
        if (any) done.push_back(name);
    }
    return done.empty() ? "none" : joined(done);
}

}  // namespace

void print_list(const Registry& registry, ListFormat format, std::ostream& out) {
    std::vector<std::vector<std::string>> table = {{"rung", "pass", "types and head dimensions", "also"}};
    for (const Rung& rung : registry.rungs()) {
        table.push_back({rung.title(), name(rung.pass), types_and_dimensions(rung), extras(rung)});
    }
    std::vector<std::size_t> width(table[0].size(), 0);
    for (const auto& row : table) {
        for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
    }
    for (std::size_t r = 0; r < table.size(); ++r) {
        std::string line;
        for (std::size_t c = 0; c < table[r].size(); ++c) {
            const std::string cell = table[r][c];
            if (format == ListFormat::markdown) {
                line += "| " + cell + " ";
            } else {
                line += cell + std::string(c + 1 < table[r].size() ? width[c] - cell.size() + 2 : 0, ' ');
            }
        }
        out << line << (format == ListFormat::markdown ? "|\n" : "\n");
        if (r == 0 && format == ListFormat::markdown) out << "|---|---|---|---|\n";
    }
}

}  // namespace ladder
