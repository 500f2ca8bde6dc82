#include "common/profile/grid.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <sstream>
#include <string_view>

#include "common/ladder/arguments.h"

namespace profile {
namespace {

using attention::DataType;
using attention::Problem;
using ladder::Pass;

// 16384 tokens and 2048 / d heads, bf16, without and with a causal mask.
std::vector<Problem> squares(const std::vector<int>& dimensions, const std::vector<int>& lengths) {
    std::vector<Problem> problems;
    for (int d : dimensions) {
        for (const char* mask : {"none", "causal"}) {
            for (int N : lengths) {
                std::ostringstream text;
                text << "B=" << 16384 / N << " Hq=" << 2048 / d << " Hkv=" << 2048 / d << " Nq=" << N << " Nk=" << N
                     << " d=" << d << " bf16 " << mask;
                problems.push_back(parse_problem(text.str()));
            }
        }
    }
    return problems;
}

std::vector<Problem> parsed(const std::vector<std::string>& texts) {
    std::vector<Problem> problems;
    for (const std::string& text : texts) problems.push_back(parse_problem(text));
    return problems;
}

}  // namespace

const std::vector<Grid>& grids() {
    static const std::vector<Grid> all = {
        {"compare", "d 128, N 1024 and 4096", squares({128}, {1024, 4096}), {Pass::forward}},
        {"standard",
         "d 64 and 128, N from 512 to 16384",
         squares({64, 128}, {512, 1024, 2048, 4096, 8192, 16384}),
         {Pass::forward, Pass::backward}},
        {"stages",
         "d 128, three problems for results of all stages",
         parsed({"B=16 Hq=16 Hkv=16 Nq=1024 Nk=1024 d=128 bf16 causal",
                 "B=4 Hq=16 Hkv=16 Nq=4096 Nk=4096 d=128 bf16 none",
                 "B=4 Hq=16 Hkv=16 Nq=4096 Nk=4096 d=128 bf16 causal"}),
         {Pass::forward, Pass::backward}},
        {"decode",
         "one query, long and short caches, few and many sequences",
         parsed({"B=1 Hq=32 Hkv=8 Nq=1 Nk=65536 d=128 bf16 none", "B=8 Hq=32 Hkv=8 Nq=1 Nk=16384 d=128 bf16 none",
                 "B=32 Hq=32 Hkv=8 Nq=1 Nk=8192 d=128 bf16 none", "B=64 Hq=32 Hkv=32 Nq=1 Nk=4096 d=128 bf16 none"}),
         {Pass::decode}},
        {"counts",
         "small ones, on which the emulator counts in seconds",
         parsed({"B=1 Hq=2 Hkv=1 Nq=80 Nk=80 d=64 bf16 causal", "B=1 Hq=2 Hkv=2 Nq=40 Nk=100 d=128 fp16 window:30,0",
                 "B=1 Hq=1 Hkv=1 Nq=50 Nk=70 d=40 fp32 none", "B=1 Hq=1 Hkv=1 Nq=70 Nk=90 d=256 bf16 causal",
                 "B=2 Hq=4 Hkv=2 Nq=1 Nk=130 d=64 bf16 none"}),
         {Pass::forward, Pass::backward, Pass::decode}}};
    return all;
}

Problem parse_problem(const std::string& text) {
    const std::string example =
        "\"B=16 Hq=16 Hkv=16 Nq=1024 Nk=1024 d=128 bf16 causal\" (fp32, fp16; none, window:L,R), or packed, "
        "\"Hq=16 Hkv=16 d=128 bf16 causal seqlens=5,0,17\".";
    Problem problem;
    const std::map<std::string, int*> sizes = {
        {"B", &problem.B},   {"Hq", &problem.Hq}, {"Hkv", &problem.Hkv},         {"Nq", &problem.Nq},
        {"Nk", &problem.Nk}, {"d", &problem.d},   {"pages", &problem.page_size}, {"splits", &problem.splits}};
    const auto packs = [](const std::string& word) { return word.starts_with("seqlens="); };
    const auto understood = [&](const std::string& word) {
        for (DataType type : {DataType::fp32, DataType::fp16, DataType::bf16}) {
            if (word == attention::name(type)) return problem.type = type, true;
        }
        if (word == "deterministic") return problem.deterministic = true;
        if (ladder::set_mask(problem, word)) return true;
        const std::size_t equals = word.find('=');
        const auto size = sizes.find(word.substr(0, equals));
        if (packs(word)) return ladder::set_lengths(problem, word.substr(equals + 1)).empty();
        if (equals == word.npos || size == sizes.end()) return false;
        const std::optional<int> number = ladder::whole_number(std::string_view(word).substr(equals + 1));
        if (number) *size->second = *number;
        return number.has_value();
    };
    std::istringstream stream(text);
    std::vector<std::string> words(std::istream_iterator<std::string>(stream), {});
    if (words.empty()) throw attention::InvalidProblem("A problem without a word; write it like " + example);
    // Lengths set B, Nq and Nk; what the other words say of these comes after them and is compared.
    std::stable_partition(words.begin(), words.end(), packs);
    for (const std::string& word : words) {
        if (!understood(word)) {
            throw attention::InvalidProblem("\"" + word + "\" in the problem \"" + text +
                                            "\" is not understood; write it like " + example);
        }
    }
    problem.scale = attention::default_scale(std::max(problem.d, 1));
    attention::validate(problem);
    return problem;
}

}  // namespace profile
