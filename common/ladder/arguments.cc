#include "common/ladder/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "common/ladder/npy.h"

namespace ladder {
namespace {

using attention::DataType;
using attention::InputLaw;
using attention::Problem;

constexpr InputLaw laws[] = {InputLaw::normal, InputLaw::outliers, InputLaw::equal, InputLaw::rising};
constexpr DataType types[] = {DataType::fp32, DataType::fp16, DataType::bf16};
constexpr Pass passes[] = {Pass::forward, Pass::backward, Pass::decode};

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text + separator);
    for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
    return parts;
}

[[noreturn]] void refuse(const std::string& option, const std::string& given, const std::string& allowed) {
    throw BadArgument(option + " " + given + ": " + allowed);
}

constexpr auto name_of = [](auto value) { return name(value); };

void set_shape(Problem& problem, const std::string& given) {
    const std::vector<std::string> parts = split(given, ',');
    int* const sizes[] = {&problem.B, &problem.Hq, &problem.Hkv, &problem.Nq, &problem.Nk, &problem.d};
    bool understood = parts.size() == std::size(sizes);
    for (std::size_t n = 0; understood && n < parts.size(); ++n) {
        const std::optional<int> size = whole_number(parts[n]);
        understood = size.has_value();
        if (understood) *sizes[n] = *size;
    }
    if (!understood) {
        refuse("--shape", given, "give six whole numbers B,Hq,Hkv,Nq,Nk,d (up to 2147483647), as in 1,4,2,256,256,64.");
    }
}

void pack(Problem& problem, const std::string& given, bool shape_given) {
    const auto [B, Nq, Nk] = std::tuple(problem.B, problem.Nq, problem.Nk);
    if (const std::string allowed = set_lengths(problem, given); !allowed.empty()) refuse("--seqlens", given, allowed);
    if (shape_given && std::tuple(B, Nq, Nk) != std::tuple(problem.B, problem.Nq, problem.Nk)) {
        std::ostringstream fitting;
        fitting << problem.B << ',' << problem.Hq << ',' << problem.Hkv << ',' << problem.Nq << ',' << problem.Nk << ','
                << problem.d;
        refuse("--seqlens", given,
               "these are " + std::to_string(problem.B) + " sequences of at most " + std::to_string(problem.Nq) +
                   " queries and " + std::to_string(problem.Nk) +
                   " keys, and --shape says otherwise; leave it out or give --shape " + fitting.str() + ".");
    }
}

// An option that would have no effect is refused: whoever gave it expects one.
void refuse_ignored(const CLI::App& app, const Arguments& arguments) {
    const auto given = [&](const char* option) { return app.get_option(option)->count() > 0; };
    const auto allow_only = [&](const std::set<std::string>& options, const std::string& why) {
        for (const CLI::Option* option : app.get_options()) {
            if (option->count() > 0 && !options.contains(option->get_name()))
                throw BadArgument(option->get_name() + ": " + why);
        }
    };
    if (arguments.list) allow_only({"--list", "--markdown"}, "--list prints all rungs and takes --markdown alone.");
    if (arguments.markdown && !arguments.list) throw BadArgument("--markdown: it belongs to --list; give both.");
    if (arguments.explain) {
        allow_only({"--explain", "--block", "--shape", "--seqlens", "--tensors", "--dtype", "--mask", "--scale",
                    "--input", "--seed"},
                   "--explain prints the steps of a problem without dropout, softcap and ALiBi and runs no rung; leave "
                   "it out.");
    } else if (given("--block")) {
        throw BadArgument("--block: it belongs to --explain; give both.");
    }
    if (arguments.examples) {
        allow_only({"--explain"},
                   "--explain alone prints two worked examples as they are; add a problem by --shape, "
                   "--seqlens or --tensors.");
    }
    if (given("--tensors") && given("--seed") && arguments.problem.dropout == 0 && arguments.problem.page_size == 0 &&
        arguments.schedule.empty()) {
        throw BadArgument(
            "--seed: the files of --tensors hold the inputs, and without --dropout, --page-size and --schedule nothing "
            "else depends on it; leave it out.");
    }
}

Problem default_problem(bool emulated) {
    Problem problem;
    problem.B = emulated ? 1 : 16;
    problem.Hq = emulated ? 4 : 16;
    problem.Hkv = emulated ? 2 : 4;
    problem.Nq = problem.Nk = emulated ? 256 : 1024;
    problem.d = emulated ? 64 : 128;
    problem.type = DataType::bf16;
    problem.window_right = 0;
    return problem;
}

}  // namespace

const char* name(InputLaw law) {
    switch (law) {
        case InputLaw::normal:
            return "normal";
        case InputLaw::outliers:
            return "outliers";
        case InputLaw::equal:
            return "equal";
        case InputLaw::rising:
            return "rising";
    }
    return "";
}

std::string mask_name(const Problem& problem) {
    if (problem.causal()) return "causal";
    if (problem.window_left == -1 && problem.window_right == -1) return "none";
    return "window:" + std::to_string(problem.window_left) + "," + std::to_string(problem.window_right);
}

bool set_mask(attention::Problem& problem, std::string_view given) {
    constexpr std::string_view window = "window:";
    std::optional<int> left, right;
    if (given == "none" || given == "causal") {
        left = -1;
        right = given == "causal" ? 0 : -1;
    } else if (const std::size_t comma = given.find(','); comma != given.npos && given.starts_with(window)) {
        left = whole_number(given.substr(window.size(), comma - window.size()));
        right = whole_number(given.substr(comma + 1));
    }
    if (!left || !right || *left < -1 || *right < -1) return false;
    problem.window_left = *left;
    problem.window_right = *right;
    return true;
}

std::string set_lengths(Problem& problem, const std::string& given) {
    problem.cu_q = problem.cu_k = {0};
    problem.Nq = problem.Nk = 0;
    for (const std::string& part : split(given, ',')) {
        const std::size_t colon = part.find(':');
        const std::optional<int> queries = whole_number(part.substr(0, colon));
        const std::optional<int> keys = colon == std::string::npos ? queries : whole_number(part.substr(colon + 1));
        if (!queries || !keys || *queries < 0 || *keys < 0)
            return "give lengths >= 0 separated by commas, as in 5,0,17, or queries:keys, as in 5:7,0:3.";
        for (auto [cu, length] : {std::pair{&problem.cu_q, *queries}, std::pair{&problem.cu_k, *keys}}) {
            if (length > std::numeric_limits<int>::max() - cu->back())
                return "the lengths sum up to more than 2147483647.";
            cu->push_back(cu->back() + length);
        }
        problem.Nq = std::max(problem.Nq, *queries);
        problem.Nk = std::max(problem.Nk, *keys);
    }
    problem.B = static_cast<int>(problem.cu_q.size()) - 1;
    return "";
}

bool parse(CLI::App& app, int argc, const char* const* argv, std::ostream& out) {
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        out << app.help();
        return false;
    } catch (const CLI::ParseError& error) {
        throw BadArgument(std::string(error.what()) + " (--help lists the options.)");
    }
    return true;
}

std::string command(const CLI::App& app, int argc, const char* const* argv,
                    std::initializer_list<std::string_view> left_out) {
    std::string words = app.get_name();
    for (int n = 1; n < argc; ++n) {
        const std::string word = argv[n];
        if (word == "--json") ++n;
        else if (word.starts_with("--json=") || std::count(left_out.begin(), left_out.end(), word) > 0) continue;
        else words += word.find(' ') == word.npos ? " " + word : " \"" + word + '"';
    }
    return words;
}

std::optional<Arguments> parse_arguments(int argc, const char* const* argv, bool emulated, std::ostream& out) {
    Arguments arguments;
    Problem& problem = arguments.problem = default_problem(emulated);
    std::optional<std::string> shape, lengths, type, mask, law, seed, folder;
    std::vector<std::string> passes_given;
    bool no_time = false;

    CLI::App app(
        "Runs every rung of attention on one problem, compares it with a reference in double precision, and "
        "prints what it moved, computed and, on a GPU, took. Without options: " +
            attention::describe(problem) + ".",
        "ladder");
    app.footer("Exit status: 0 all verified, 1 something was wrong, 2 bad arguments, 3 nothing was verified.");
    app.add_flag("--list", arguments.list, "Print the rungs and what each does, and stop");
    app.add_flag("--markdown", arguments.markdown, "With --list: as a Markdown table");
    app.add_flag("--explain", arguments.explain,
                 "Print m, l, u, alpha and W of the online softmax after every block of keys, and stop: of two worked "
                 "examples, or of a small problem");
    // CLI11 would read 016 as 14.
    const CLI::Validator decimal(
        [](std::string& text) {
            const std::optional<int> number = whole_number(text);
            if (number) text = std::to_string(*number);
            return number ? "" : text.empty() ? "a number is missing" : text + " is no whole number of 32 bits";
        },
        "");
    app.add_option("--block", arguments.block, "With --explain: keys of a block, 2 unless given")->transform(decimal);
    app.add_option("--stages", arguments.stages, "Only these stages, as in 00,02")->delimiter(',');
    app.add_option("--rungs", arguments.rungs, "Only these rungs, as in 00a,02b")->delimiter(',');
    app.add_option("--pass", passes_given,
                   "Only these of forward,backward,decode; decode alone: of 1 query and 16 times the keys unless a "
                   "shape is given")
        ->delimiter(',');
    app.add_option("--shape", shape,
                   "B,Hq,Hkv,Nq,Nk,d: sequences, query and key/value heads, queries, keys, head dimension");
    app.add_option("--seqlens", lengths,
                   "Packed sequences of these lengths, as in 5,0,17, or queries:keys, as in 5:7,0:3");
    app.add_option(
        "--tensors", folder,
        "Inputs from this folder: Q.npy, K.npy, V.npy, and dO.npy, cu_q.npy, cu_k.npy where they are; results go "
        "to folders in it, as in 01c_forward/O.npy");
    app.add_option("--dtype", type, "fp32, fp16 or bf16");
    app.add_option("--mask", mask, "none, causal (aligned at the last key) or window:L,R");
    // An empty text would be read as 0.
    const CLI::Validator not_empty([](std::string& text) { return text.empty() ? "a number is missing" : ""; }, "");
    CLI::Option* scale = app.add_option("--scale", problem.scale, "S = scale * Q K^T; 1/sqrt(d) unless given");
    scale->check(not_empty);
    app.add_option("--softcap", problem.softcap, "Scores S become C tanh(S / C); 0: as they are")->check(not_empty);
    app.add_flag("--alibi", problem.alibi, "Scores fall with the distance of the key, by a slope for each head");
    app.add_option("--dropout", problem.dropout, "Fraction of the weights to drop, in [0, 1)")->check(not_empty);
    app.add_option("--page-size", problem.page_size,
                   "K and V in pages of so many keys (16, 32, ... 256), in random order; for decode")
        ->transform(decimal);
    app.add_option("--splits", problem.splits,
                   "Into how many splits decode cuts the longest sequence; 0: as it finds best")
        ->transform(decimal);
    app.add_flag("--deterministic", problem.deterministic,
                 "Only rungs that give the same bits in every run, and for a sequence in any batch");
    app.add_option("--input", law, "normal, outliers, equal (all scores of a row) or rising (scores)");
    app.add_option("--seed", seed, "Of inputs, dropout and schedule: a whole number >= 0");
    app.add_option("--schedule", arguments.schedule,
                   "Order of events on the emulator, as in in_order, reverse, random");
    app.add_option("--json", arguments.json, "Write the results to this file too");
    app.add_flag("--no-time", no_time, "Do not measure time");

    if (!parse(app, argc, argv, out)) return std::nullopt;
    arguments.command = command(app, argc, argv);

    if (shape) set_shape(problem, *shape);
    if (lengths) pack(problem, *lengths, shape.has_value());
    if (type) problem.type = by_name("--dtype", *type, types, name_of);
    if (mask && !set_mask(problem, *mask)) {
        refuse(
            "--mask", *mask,
            "give none, causal, or window:L,R with the keys that a query sees to its left and right (-1: all), as in "
            "window:128,0.");
    }
    if (law) arguments.law = by_name("--input", *law, laws, name_of);
    if (seed) {
        const std::optional<std::uint64_t> number = whole_number<std::uint64_t>(*seed);
        if (!number) refuse("--seed", *seed, "give a whole number from 0 to 18446744073709551615.");
        arguments.seed = *number;
    }
    if (arguments.block < 1) {
        refuse("--block", std::to_string(arguments.block), "a block holds at least 1 key.");
    }
    if (folder && (shape || lengths || law)) {
        refuse("--tensors", *folder, "the files say what --shape, --seqlens and --input would; leave those out.");
    }
    arguments.examples = arguments.explain && !shape && !lengths && !folder;
    refuse_ignored(app, arguments);
    for (const std::string& pass : passes_given) arguments.passes.push_back(by_name("--pass", pass, passes, name_of));
    if (arguments.passes == std::vector{Pass::decode} && !shape && !lengths && !folder) {
        problem.Nq = 1;
        problem.Nk *= 16;
    }
    try {
        if (folder) arguments.tensors = read_tensors(*folder, problem);
    } catch (const std::runtime_error& error) {
        refuse("--tensors", *folder, error.what());
    }
    if (scale->count() == 0) problem.scale = attention::default_scale(std::max(problem.d, 1));
    problem.dropout_seed = arguments.seed;
    arguments.time = !no_time;
    try {
        attention::validate(problem);
    } catch (const attention::InvalidProblem& error) {
        throw BadArgument(error.what());
    }
    return arguments;
}

}  // namespace ladder
