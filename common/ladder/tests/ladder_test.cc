// The program as a user meets it: arguments, exit status, table, JSON.
#include "common/ladder/ladder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/ladder/report.h"
#include "common/ladder/tests/fakes.h"

namespace {

using fakes::Behaviour;
using ladder::Pass;
using nlohmann::json;

struct Outcome {
    int status;
    std::string out, err;
};

Outcome run(const ladder::Registry& registry, std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "ladder");
    std::ostringstream out, err;
    const int status = ladder::run(registry, {"a compiler", "a commit"}, static_cast<int>(arguments.size()),
                                   arguments.data(), out, err);
    return {status, out.str(), err.str()};
}

ladder::Registry registry(std::initializer_list<Behaviour> behaviours) {
    ladder::Registry result;
    char letter = 'a';
    for (Behaviour behaviour : behaviours) result.add(fakes::rung(std::string(1, letter++), behaviour));
    return result;
}

constexpr const char* small = "1,2,1,17,17,64";

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// A folder of its own for each test.
class Ladder : public testing::Test {
  protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("ladder_test_" + std::to_string(::getpid()) + "_" +
                                                      testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string path(const std::string& name) const { return (folder_ / name).string(); }
    bool folder_is_empty() const { return std::filesystem::is_empty(folder_); }

    std::filesystem::path folder_;
};

TEST_F(Ladder, ExitStatusTellsWhatHappened) {
    EXPECT_EQ(run(registry({Behaviour::right}), {"--shape", small}).status, 0);
    EXPECT_EQ(run(registry({Behaviour::right, Behaviour::refuses}), {"--shape", small}).status, 0);
    EXPECT_EQ(run(registry({Behaviour::right, Behaviour::wrong}), {"--shape", small}).status, 1);
    EXPECT_EQ(run(registry({Behaviour::right, Behaviour::unwritten}), {"--shape", small}).status, 1);
    EXPECT_EQ(run(registry({Behaviour::right, Behaviour::breaks_rule}), {"--shape", small}).status, 1);
    EXPECT_EQ(run(registry({Behaviour::refuses, Behaviour::no_code}), {"--shape", small}).status, 3);  // B57
    EXPECT_EQ(run(registry({}), {"--shape", small}).status, 3);
}

TEST_F(Ladder, BadArgumentsAreRefusedBeforeAnythingRuns) {
    std::ofstream(path("file")) << "kept";
    const std::string json_directory = folder_.string(), json_nowhere = path("missing/ladder.json");
    const struct {
        std::vector<const char*> arguments;
        const char* said;
    } cases[] = {
        {{"--shape", "1,3,2,16,16,64"}, "Hq = 3 is not a multiple of Hkv = 2"},
        {{"--shape", "1,2,1,-5,16,64"}, "Nq = -5"},
        {{"--shape", "-1,2,1,5,16,64"}, "B = -1"},
        {{"--shape", "1,2,1,16"}, "--shape 1,2,1,16: give six whole numbers"},
        {{"--shape", "1,2,1,16,16,64x"}, "--shape 1,2,1,16,16,64x"},
        {{"--shape", "1,2,1,16,16,99999999999"}, "--shape 1,2,1,16,16,99999999999"},
        {{"--shape", "1,2,1,16,16,0"}, "d = 0"},
        {{"--shape", "1,2,1,16,16,32", "--rungs", "00b"}, "d=32 bf16 causal: it takes a d of 64 or more, not 32."},
        {{"--shape", "2,64,64,500000000,500000000,4096"}, "PiB of memory"},
        {{"--shape", "2147483647,1,1,0,0,64"}, "has B Hq = 2147483647"},
        {{"--shape", "1,2147483647,1,0,0,64"}, "has B Hq = 2147483647"},
        {{"--shape", "2147483647,2147483647,1,0,0,64"}, "has B Hq = 4611686014132420609"},
        {{"--shape", "2147483647,1,1,0,0,64", "--rungs", "00a"}, "does at most"},
        {{"--explain", "--shape", "2147483647,1,1,0,0,64"}, "has too many"},
        {{"--rungs", "07z"}, "--rungs 07z: this build has 00a, 00b"},
        {{"--stages", "07"}, "--stages 07: this build has 00"},
        {{"--pass", "sideways"}, "--pass sideways: choose among forward, backward, decode"},
        {{"--pass", "backward"}, "leave no rung"},
        {{"--dtype", "fp64"}, "--dtype fp64: choose among fp32, fp16, bf16"},
        {{"--mask", "diagonal"}, "--mask diagonal: give none, causal, or window:L,R"},
        {{"--mask", "window:3"}, "--mask window:3"},
        {{"--mask", "window:-2,0"}, "--mask window:-2,0"},
        {{"--scale", "nan"}, "scale = nan"},
        {{"--scale", "-1e38"}, "scale = -1e+38; give a number from -2^100 to 2^100"},
        {{"--scale", "much"}, "--scale"},
        {{"--scale", ""}, "a number is missing"},
        {{"--dropout", ""}, "a number is missing"},
        {{"--softcap", ""}, "a number is missing"},
        {{"--softcap", "-1"}, "softcap = -1"},
        {{"--softcap", "3e38"}, "softcap = 3e+38; give a number above 0, at most 2^100"},
        {{"--page-size", "24"}, "page size = 24; a page holds 16, 32, 64, 128 or 256 keys"},
        {{"--page-size", ""}, "a number is missing"},
        {{"--splits", "-1"}, "splits = -1"},
        {{"--splits", "many"}, "--splits: many is no whole number"},
        {{"--splits", "0x10"}, "--splits: 0x10 is no whole number"},
        {{"--splits", "3", "--deterministic"}, "splits = 3 depends on the longest sequence"},
        {{"--page-size", "020"}, "page size = 20;"},
        {{"--explain", "--block", "0x2"}, "--block: 0x2 is no whole number"},
        {{"--rungs", "00a", "--softcap", "50"}, "00a fake, forward, does not do"},
        {{"--explain", "--shape", "1,1,1,2,2,4", "--dropout", "0.5"}, "--dropout: --explain prints the steps"},
        {{"--explain", "--shape", "1,1,1,2,2,4", "--schedule", "reverse"}, "--schedule: --explain prints the steps"},
        {{"--explain", "--json", json_nowhere.c_str()}, "--json: --explain prints the steps"},
        {{"--explain", "--rungs", "00a"}, "--rungs: --explain prints the steps"},
        {{"--explain", "--no-time"}, "--no-time: --explain prints the steps"},
        {{"--explain", "--block", "3"}, "--block: --explain alone prints two worked examples"},
        {{"--explain", "--mask", "none"}, "--mask: --explain alone prints two worked examples"},
        {{"--block", "3"}, "--block: it belongs to --explain"},
        {{"--markdown"}, "--markdown: it belongs to --list"},
        {{"--markdown", "--explain"}, "--markdown: it belongs to --list"},
        {{"--list", "--shape", small}, "--shape: --list prints all rungs"},
        {{"--list", "--explain"}, "--explain: --list prints all rungs"},
        {{"--list", "--json", json_nowhere.c_str()}, "--json: --list prints all rungs"},
        {{"--json", "/dev/null"}, "it is not a file"},
        {{"--dropout", "1"}, "dropout"},
        {{"--dropout", "-0.5"}, "dropout"},
        {{"--input", "strange"}, "--input strange: choose among normal, outliers, equal, rising"},
        {{"--seed", "-3"}, "--seed -3: give a whole number from 0"},
        {{"--shape", ""}, "--shape : give six whole numbers"},
        {{"--seqlens", "5,-1"}, "--seqlens 5,-1: give lengths >= 0"},
        {{"--seqlens", "5,,3"}, "--seqlens 5,,3"},
        {{"--seqlens", "2000000000,2000000000"}, "more than 2147483647"},
        {{"--seqlens", "5,7", "--shape", "1,2,1,17,17,64"}, "--shape 2,2,1,7,7,64"},
        {{"--schedule", "whenever"}, "--schedule whenever"},
        {{"--json", json_directory.c_str()}, "is a directory"},
        {{"--json", json_nowhere.c_str()}, "missing/ladder.json cannot be written"},
        {{"--explain", "--block", "0"}, "--block 0: a block holds at least 1 key"},
        {{"--explain", "--shape", "1,2,1,1000,1000,64"}, "has too many; B Hq Nq Nk d up to 65536"},
        {{"--tensors", "missing"}, "missing/Q.npy cannot be opened"},
        {{"--tensors", "missing", "--shape", "1,2,1,17,17,64"}, "leave those out"},
        {{"--colour"}, "--colour"},
        {{"--json"}, "--json"},
    };
    for (const auto& bad : cases) {
        const Outcome outcome = run(registry({Behaviour::right, Behaviour::refuses_small_d}), bad.arguments);
        EXPECT_EQ(outcome.status, 2) << bad.arguments[0] << '\n' << outcome.err << outcome.out;
        EXPECT_CONTAINS(outcome.err, bad.said);
        EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
        EXPECT_EQ(outcome.out, "");
    }
}

TEST_F(Ladder, MoreHeadsThanAGridOnceHeldAreDone) {
    EXPECT_EQ(run(registry({Behaviour::right}), {"--shape", "70000,1,1,1,1,1"}).status, 0);
    EXPECT_EQ(run(registry({Behaviour::right}), {"--shape", "2,35000,1,0,0,1"}).status, 0);
}

TEST_F(Ladder, MemoryThatIsNotThereIsRefusedWithBothFigures) {
    const Outcome outcome = run(registry({Behaviour::hungry}), {"--shape", small});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_CONTAINS(outcome.err, "needs 1.00 EiB of memory");
    EXPECT_CONTAINS(outcome.err, "are free");
    const ladder::Registry both = registry({Behaviour::right, Behaviour::hungry});
    EXPECT_EQ(run(both, {"--shape", small, "--rungs", "00a,00b"}).status, 2);
    const Outcome one_skipped = run(both, {"--shape", small});
    EXPECT_EQ(one_skipped.status, 0);
    EXPECT_CONTAINS(one_skipped.out, "SKIPPED 00b fake, forward: needs 1.00 EiB of memory");
}

TEST_F(Ladder, NothingIsAllocatedForAProblemThatNoRungDoes) {
    EXPECT_EQ(run(registry({Behaviour::refuses}), {"--shape", "2000000000,64,64,500000000,500000000,64"}).status, 3);
}

TEST_F(Ladder, RungNotAskedForByNameIsSkippedWithItsReason) {
    const Outcome outcome =
        run(registry({Behaviour::right, Behaviour::refuses_small_d}), {"--shape", "1,2,1,17,17,32"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_CONTAINS(outcome.out, "SKIPPED 00b fake, forward: takes a d of 64 or more, not 32");
    EXPECT_CONTAINS(outcome.out, "1 verified, 0 wrong, 1 skipped.");
}

TEST_F(Ladder, SoftcapAndAlibiReachOnlyTheRungsThatTakeThem) {
    ladder::Registry both = registry({Behaviour::right});
    ladder::Rung modifying = fakes::rung("b", Behaviour::right);
    modifying.modifiers = true;
    both.add(modifying);
    const std::string file = path("ladder.json");
    const Outcome outcome = run(both, {"--shape", small, "--softcap", "0.5", "--alibi", "--json", file.c_str()});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_CONTAINS(outcome.out, "causal softcap=0.5 alibi");
    EXPECT_CONTAINS(outcome.out, "SKIPPED 00a fake, forward: has no softcap");
    EXPECT_CONTAINS(outcome.out, "1 verified, 0 wrong, 1 skipped.");
    EXPECT_CONTAINS(run(both, {"--shape", small, "--alibi"}).out, "SKIPPED 00a fake, forward: has no ALiBi");
    const json problem = json::parse(std::ifstream(file)).at("problem");
    EXPECT_EQ(problem.at("softcap"), 0.5);
    EXPECT_EQ(problem.at("alibi"), true);
    EXPECT_CONTAINS(run(both, {"--list"}).out, "packed, dropout, softcap, ALiBi");
}

TEST_F(Ladder, DecodingProblemsReachTheDecodingRungs) {
    ladder::Registry both = registry({Behaviour::right});
    both.add(fakes::rung("b", Behaviour::right, Pass::decode));
    const std::string file = path("ladder.json");
    const Outcome outcome =
        run(both, {"--shape", "2,2,1,1,40,64", "--page-size", "016", "--splits", "3", "--json", file.c_str()});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_CONTAINS(outcome.out, "Nq=1 Nk=40 d=64 bf16 causal pages=16 splits=3, input");
    EXPECT_CONTAINS(outcome.out, "SKIPPED 00a fake, forward: takes no pages, as only decoding rungs do");
    EXPECT_CONTAINS(outcome.out, "1 verified, 0 wrong, 1 skipped.");
    json problem = json::parse(std::ifstream(file)).at("problem");
    EXPECT_EQ(problem.at("page_size"), 16);
    EXPECT_EQ(problem.at("splits"), 3);
    EXPECT_EQ(problem.at("deterministic"), false);
    EXPECT_EQ(run(both, {"--shape", "2,2,1,1,40,64", "--deterministic", "--json", file.c_str()}).status, 0);
    problem = json::parse(std::ifstream(file)).at("problem");
    EXPECT_EQ(problem.at("deterministic"), true);
    EXPECT_CONTAINS(run(both, {"--pass", "decode"}).out, "Nq=1 Nk=4096");
    EXPECT_CONTAINS(run(both, {"--list"}).out, "packed, dropout, pages");
}

TEST_F(Ladder, TableShowsStatusMachineAndReason) {
    const Outcome outcome = run(registry({Behaviour::right, Behaviour::wrong, Behaviour::refuses}), {"--shape", small});
    EXPECT_CONTAINS(outcome.out, "B=1 Hq=2 Hkv=1 Nq=17 Nk=17 d=64 bf16 causal, input normal, seed 1");
    const std::string machine = gpu::device().emulated ? "emulated" : gpu::device().name;
    EXPECT_CONTAINS(outcome.out, "00a fake  forward  " + machine + "  verified");
    EXPECT_CONTAINS(outcome.out, "00b fake  forward  " + machine + "  WRONG");
    EXPECT_CONTAINS(outcome.out, "00c fake  forward  " + machine + "  SKIPPED");
    EXPECT_CONTAINS(outcome.out, "WRONG   00b fake, forward: O: error");
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line) && !line.starts_with("WRONG ");) EXPECT_LE(line.size(), 160u);
}

// Only where a rung has some, so that the tables of the others stay narrow.
TEST_F(Ladder, PolynomialsHaveAColumnOfTheirOwn) {
    ladder::Report report;
    report.rows.resize(2);
    report.rows[0].exponentials = report.rows[1].exponentials = 4096;
    report.rows[0].polynomials = 0;
    std::ostringstream without, with;
    ladder::print_table(report, without);
    EXPECT_EQ(without.str().find("polynomials"), std::string::npos) << without.str();
    report.rows[1].polynomials = 1024;
    ladder::print_table(report, with);
    EXPECT_CONTAINS(with.str(), "4.10 k            0");
    EXPECT_CONTAINS(with.str(), "4.10 k       1.02 k");
    EXPECT_EQ(ladder::to_json(report.rows[1], report.source()).at("polynomials"), 1024);
}

TEST_F(Ladder, SelectsByStageRungAndPass) {
    ladder::Registry both = registry({Behaviour::right, Behaviour::right});
    both.add(fakes::rung("a", Behaviour::right, Pass::backward));
    EXPECT_CONTAINS(run(both, {"--shape", small, "--rungs", "00b"}).out, "1 verified");
    EXPECT_CONTAINS(run(both, {"--shape", small, "--rungs", "00a"}).out, "2 verified");
    EXPECT_CONTAINS(run(both, {"--shape", small, "--rungs", "00a,00b", "--pass", "forward"}).out, "2 verified");
    EXPECT_CONTAINS(run(both, {"--shape", small, "--stages", "00", "--pass", "backward,forward"}).out, "3 verified");
}

TEST_F(Ladder, OptionsReachTheProblem) {
    const std::string file = path("ladder.json");
    const Outcome outcome =
        run(registry({Behaviour::right}),
            {"--seqlens", "5:7,0:3", "--dtype", "fp16", "--mask", "window:4,2", "--scale", "0.25", "--dropout", "0.125",
             "--input", "rising", "--seed", "7", "--no-time", "--json", file.c_str()});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const json problem = json::parse(std::ifstream(file)).at("problem");
    EXPECT_EQ(problem.at("B"), 2);
    EXPECT_EQ(problem.at("Nq"), 5);
    EXPECT_EQ(problem.at("Nk"), 7);
    EXPECT_EQ(problem.at("seqlens"), json({{"queries", {5, 0}}, {"keys", {7, 3}}}));
    EXPECT_EQ(problem.at("dtype"), "fp16");
    EXPECT_EQ(problem.at("mask"), "window:4,2");
    EXPECT_EQ(problem.at("scale"), 0.25);
    EXPECT_EQ(problem.at("dropout"), 0.125);
    EXPECT_EQ(problem.at("input"), "rising");
    EXPECT_EQ(json::parse(std::ifstream(file)).at("seed"), 7);
}

TEST_F(Ladder, JsonHasTheWholeSchemaAndNullForTheUnknown) {
    const std::string file = path("ladder.json");
    EXPECT_EQ(run(registry({Behaviour::right, Behaviour::wrong, Behaviour::refuses}),
                  {"--shape", small, "--json", file.c_str()})
                  .status,
              1);
    const json document = json::parse(std::ifstream(file));
    EXPECT_EQ(document.at("schema"), 1);
    EXPECT_EQ(document.at("machine"), gpu::device().emulated ? "emulated" : gpu::device().name);
    EXPECT_EQ(document.at("build"), "a compiler");
    EXPECT_EQ(document.at("commit"), "a commit");
    EXPECT_EQ(document.at("command").get<std::string>().substr(0, 7), "ladder ");
    EXPECT_EQ(document.at("command").get<std::string>().find("--json"), std::string::npos);
    EXPECT_TRUE(document.at("clock_mhz").is_null());  // the emulator has none
    ASSERT_EQ(document.at("rows").size(), 3u);
    const char* const status[] = {"verified", "wrong", "skipped"};
    for (int n = 0; n < 3; ++n) {
        const json& row = document.at("rows")[n];
        EXPECT_EQ(row.at("stage"), "00");
        EXPECT_EQ(row.at("rung"), std::string(1, 'a' + n));
        EXPECT_EQ(row.at("name"), "fake");
        EXPECT_EQ(row.at("pass"), "forward");
        EXPECT_EQ(row.at("status"), status[n]);
        for (const char* key : {"bytes", "exps", "polynomials", "time_ms", "tflops"})
            EXPECT_TRUE(row.contains(key)) << key;
        EXPECT_TRUE(row.at("ceiling_fraction").is_null());
    }
    const json &right = document.at("rows")[0], &wrong = document.at("rows")[1], &skipped = document.at("rows")[2];
    EXPECT_TRUE(right.at("reason").is_null());
    for (const char* tensor : {"O", "L"}) {
        EXPECT_LE(right.at("errors").at(tensor).at("error"), right.at("errors").at(tensor).at("limit"));
    }
    EXPECT_EQ(right.at("flops"), 4.0 * 64 * (17 * 18 / 2) * 2);  // causal: 1 + 2 + ... + 17 pairs in each of two heads
    EXPECT_GT(wrong.at("errors").at("O").at("error"), wrong.at("errors").at("O").at("limit"));
    EXPECT_EQ(skipped.at("reason"), "does nothing");
    EXPECT_EQ(skipped.at("errors"), json::object());
    EXPECT_TRUE(skipped.at("flops").is_null());
}

TEST_F(Ladder, BytesKeepTheirTensorsAndTheirSource) {
    ladder::Report report;
    ladder::Row row;
    row.bytes = {{"Q", 10, 0, 5, 0}, {"O", 0, 8, 0, 4}};
    report.rows.push_back(row);
    report.emulated = false;
    EXPECT_EQ(ladder::to_json(report).at("rows")[0].at("bytes"), json::parse(R"({"source": "modelled", "tensors": {
        "Q": {"requested_read": 10, "requested_written": 0, "distinct_read": null, "distinct_written": null},
        "O": {"requested_read": 0, "requested_written": 8, "distinct_read": null, "distinct_written": null}}})"));
    report.emulated = true;
    EXPECT_EQ(ladder::to_json(report).at("rows")[0].at("bytes"), json::parse(R"({"source": "counted", "tensors": {
        "Q": {"requested_read": 10, "requested_written": 0, "distinct_read": 5, "distinct_written": 0},
        "O": {"requested_read": 0, "requested_written": 8, "distinct_read": 0, "distinct_written": 4}}})"));
}

TEST_F(Ladder, FileAppearsWholeOrNotAtAll) {
    const std::string file = path("ladder.json");
    EXPECT_EQ(run(registry({Behaviour::right}), {"--rungs", "00b", "--json", file.c_str()}).status, 2);
    EXPECT_EQ(run(registry({Behaviour::hungry}), {"--shape", small, "--json", file.c_str()}).status, 2);
    EXPECT_TRUE(folder_is_empty());
    EXPECT_EQ(run(registry({Behaviour::right}), {"--shape", small, "--json", file.c_str()}).status, 0);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(Ladder, ListAsksTheRungs) {
    const Outcome outcome =
        run(registry({Behaviour::right, Behaviour::refuses_small_d, Behaviour::refuses}), {"--list"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_CONTAINS(outcome.out, "00a fake  forward  fp32, fp16, bf16: d 1 to 256");
    EXPECT_CONTAINS(outcome.out, "00b fake  forward  fp32, fp16, bf16: d 64, 72, 80, 96, 128, 192, 256");
    EXPECT_CONTAINS(outcome.out, "causal, window, Nq != Nk, GQA, packed, dropout");
    EXPECT_CONTAINS(outcome.out, "00c fake  forward  none: it does nothing");
    EXPECT_CONTAINS(run(registry({Behaviour::right}), {"--list", "--markdown"}).out, "| 00a fake | forward | fp32");
}

TEST_F(Ladder, HelpNamesEveryOption) {
    const Outcome outcome = run(registry({}), {"--help"});
    EXPECT_EQ(outcome.status, 0);
    for (const char* option :
         {"--list",    "--stages",  "--rungs",     "--shape",  "--seqlens",       "--dtype", "--mask",    "--scale",
          "--dropout", "--softcap", "--page-size", "--splits", "--deterministic", "--alibi", "--explain", "--block",
          "--tensors", "--pass",    "--input",     "--seed",   "--schedule",      "--json",  "--no-time"}) {
        EXPECT_CONTAINS(outcome.out, option);
    }
}

}  // namespace
