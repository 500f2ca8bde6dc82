// The program `bench` with rungs that are right, wrong or fail in a chosen way.
#include "common/profile/bench.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/gpu/launch.h"
#include "common/ladder/tests/fakes.h"

namespace {

using fakes::Behaviour;
using nlohmann::json;

struct Outcome {
    int status;
    std::string out, err;
    json results;
};

Outcome run(const ladder::Registry& registry, std::vector<std::string> arguments) {
    const std::string path =
        (std::filesystem::temp_directory_path() / ("bench_test." + std::to_string(::getpid()))).string();
    arguments.insert(arguments.begin(), "bench");
    arguments.insert(arguments.end(), {"--json", path});
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::istringstream in;
    std::ostringstream out, err;
    Outcome outcome;
    outcome.status = profile::bench(registry, int(argv.size()), argv.data(), in, out, err);
    outcome.out = out.str();
    outcome.err = err.str();
    if (std::ifstream file(path); file) outcome.results = json::parse(file);
    std::filesystem::remove(path);
    return outcome;
}

const std::vector<std::string> small = {"--problem", "B=1 Hq=2 Hkv=1 Nq=9 Nk=11 d=16 fp16 causal"};

ladder::Registry registry_of(ladder::Rung rung) {
    ladder::Registry registry;
    registry.add(fakes::rung("a", Behaviour::right));
    registry.add(std::move(rung));
    return registry;
}

const json& second_row(const Outcome& outcome) { return outcome.results["rows"].at(1); }

TEST(Bench, WrongRungIsAnErrorAndHasNoFigure) {
    const Outcome outcome = run(registry_of(fakes::rung("b", Behaviour::wrong)), small);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.results["rows"][0]["status"], "verified");
    EXPECT_EQ(second_row(outcome)["status"], "wrong");
    EXPECT_TRUE(second_row(outcome)["time_ms"].is_null());
    EXPECT_TRUE(second_row(outcome).value("ms", json::array()).empty());
}

TEST(Bench, B60_LaunchThatAsksForTooMuchSharedMemoryIsAnError) {
    ladder::Rung greedy = fakes::rung("b", Behaviour::right);
    greedy.launch = [](const attention::Problem&, ladder::Operands&) {
        gpu::check_launch({"greedy", 1, 32, std::size_t{1} << 20});
    };
    const Outcome outcome = run(registry_of(greedy), small);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(second_row(outcome)["status"], "wrong");
    EXPECT_NE(second_row(outcome)["reason"].get<std::string>().find("shared memory"), std::string::npos);
}

TEST(Bench, RefusedProblemIsSkippedWithItsReason) {
    const Outcome outcome = run(registry_of(fakes::rung("b", Behaviour::refuses)), small);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(second_row(outcome)["status"], "skipped");
    EXPECT_FALSE(second_row(outcome)["reason"].get<std::string>().empty());
}

TEST(Bench, RungThatTakesTooLongIsSkippedWithItsReason) {
    if (gpu::device().emulated) GTEST_SKIP() << "times are measured on a GPU";
    const Outcome outcome =
        run(registry_of(fakes::rung("b", Behaviour::right)), {small[0], small[1], "--longest", "0"});
    EXPECT_EQ(outcome.status, 3);
    EXPECT_EQ(second_row(outcome)["status"], "skipped");
    EXPECT_NE(second_row(outcome)["reason"].get<std::string>().find("--longest"), std::string::npos);
}

TEST(Bench, NothingVerifiedIsStatusThree) {
    ladder::Registry registry;
    registry.add(fakes::rung("a", Behaviour::refuses));
    EXPECT_EQ(run(registry, small).status, 3);
}

TEST(Bench, BadArgumentsRunNothing) {
    const ladder::Registry registry = registry_of(fakes::rung("b", Behaviour::right));
    for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--input", "equal"},
                                                      {"--input", "rising"},
                                                      {"--input", "zeros"},
                                                      {"--repetitions", "8"},
                                                      {"--grid", "no such"},
                                                      {"--l2", "hot"},
                                                      {"--pass", "sideways"},
                                                      {"--filter", "("},
                                                      {"--problem", "B=many"},
                                                      {"--problem", ""},
                                                      {"--longest", "-1"},
                                                      {"--longest", "nan"},
                                                      {"--grid", "counts", "--problem", small[1]}}) {
        const Outcome outcome = run(registry, arguments);
        EXPECT_EQ(outcome.status, 2) << arguments[0] << ' ' << arguments[1];
        EXPECT_NE(outcome.err.find(arguments[0]), std::string::npos) << outcome.err;
        EXPECT_TRUE(outcome.results.is_null());
    }
}

TEST(Bench, FilterAndPassChoose) {
    ladder::Registry registry = registry_of(fakes::rung("b", Behaviour::right));
    registry.add(fakes::rung("b", Behaviour::right, ladder::Pass::backward));
    const auto listed = [&](std::vector<std::string> arguments) {
        arguments.insert(arguments.end(), {small[0], small[1], "--list"});
        const std::string out = run(registry, arguments).out;
        return std::count(out.begin(), out.end(), '\n');
    };
    EXPECT_EQ(listed({}), 3);
    EXPECT_EQ(listed({"--pass", "backward"}), 1);
    EXPECT_EQ(listed({"--filter", "^00b"}), 2);
    EXPECT_EQ(listed({"--filter", "forward.*causal"}), 2);
    EXPECT_EQ(listed({"--filter", "nothing"}), 0);
    const Outcome nothing = run(registry, {small[0], small[1], "--filter", "nothing"});
    EXPECT_EQ(nothing.status, 3);
    EXPECT_NE(nothing.err.find("no rung of this build is chosen"), std::string::npos);
}

TEST(Bench, AFileThatCannotBeWrittenIsABadArgument) {
    std::istringstream in;
    std::ostringstream out, err;
    const char* const argv[] = {"bench", small[0].c_str(), small[1].c_str(), "--json", "/nonexistent/x.json"};
    EXPECT_EQ(profile::bench(registry_of(fakes::rung("b", Behaviour::right)), 5, argv, in, out, err), 2);
    EXPECT_NE(err.str().find("--json"), std::string::npos) << err.str();
    EXPECT_EQ(out.str(), "");
}

TEST(Bench, TheEmulatorTakesNoOptionsOfTime) {
    if (!gpu::device().emulated) GTEST_SKIP() << "a GPU has a clock";
    const ladder::Registry registry = registry_of(fakes::rung("b", Behaviour::right));
    for (std::vector<std::string> arguments :
         {std::vector<std::string>{"--l2", "cold"}, {"--longest", "3"}, {"--repetitions", "11"}, {"--in-step"}}) {
        arguments.insert(arguments.end(), small.begin(), small.end());
        const Outcome outcome = run(registry, arguments);
        EXPECT_EQ(outcome.status, 2) << arguments[0];
        EXPECT_NE(outcome.err.find(arguments[0] + ": the emulator has no clock"), std::string::npos) << outcome.err;
    }
}

TEST(Bench, ProblemThatNoRungHasMemoryForIsSkippedBeforeItIsMade) {
    const Outcome outcome = run(registry_of(fakes::rung("b", Behaviour::right)),
                                {"--problem", "B=100000 Hq=1 Hkv=1 Nq=500000000 Nk=16 d=8 bf16 none"});
    EXPECT_EQ(outcome.status, 3) << outcome.err;
    EXPECT_NE(second_row(outcome)["reason"].get<std::string>().find("of memory for"), std::string::npos);
}

TEST(Bench, GridsFollowEachOther) {
    const ladder::Registry registry = registry_of(fakes::rung("b", Behaviour::right, ladder::Pass::decode));
    const auto lines = [&](const std::string& grids) {
        const std::string out = run(registry, {"--grid", grids, "--list"}).out;
        return std::count(out.begin(), out.end(), '\n');
    };
    EXPECT_EQ(lines("stages,decode"), lines("stages") + lines("decode"));
    EXPECT_EQ(lines("stages"), 3);  // rung a alone: b only decodes
    EXPECT_EQ(lines("decode"), 4);  // rung b alone
}

TEST(Bench, ResultsSayWhereTheyComeFrom) {
    const json results = run(registry_of(fakes::rung("b", Behaviour::right)), small).results;
    for (const char* key :
         {"machine", "emulated", "clock_mhz", "smi", "build", "debug", "commit", "command", "ceilings"}) {
        EXPECT_TRUE(results.contains(key)) << key;
    }
    EXPECT_EQ(results["command"], "bench --problem \"" + small[1] + "\"");
    EXPECT_EQ(results["rows"][0]["problem"]["text"], small[1]);
    EXPECT_EQ(results["rows"][0]["problem"]["input"], "normal");
#ifdef NDEBUG
    EXPECT_FALSE(results["debug"]);
#else
    EXPECT_TRUE(results["debug"]);
#endif
}

}  // namespace
