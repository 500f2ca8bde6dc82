// verify::Run with rungs whose mistakes are known.
#include "common/verify/run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/ladder/tests/fakes.h"
#include "common/verify/storage.h"

namespace {

using attention::DataType;
using attention::Problem;
using fakes::Behaviour;
using ladder::Pass;
using verify::Layout;

Problem problem(int Nq = 17, int Nk = 23) {
    Problem p;
    p.B = 2, p.Hq = 6, p.Hkv = 2, p.Nq = Nq, p.Nk = Nk, p.d = 16;
    p.type = DataType::fp16;
    p.scale = attention::default_scale(16);
    return p;
}

std::string failure(Behaviour behaviour, const Problem& p, Layout layout = Layout::dense, Pass pass = Pass::forward) {
    verify::Setup setup;
    setup.layout = layout;
    return verify::failure(fakes::rung("a", behaviour, pass), p, setup);
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Run, RightRungIsVerifiedInEveryLayoutAndType) {
    for (DataType type : {DataType::fp32, DataType::fp16, DataType::bf16}) {
        for (Layout layout :
             {Layout::dense, Layout::strided, Layout::reversed, Layout::shared_kv, Layout::misaligned}) {
            for (bool packed : {false, true}) {
                for (Pass pass : {Pass::forward, Pass::backward}) {
                    Problem p = problem();
                    p.type = type;
                    if (packed) p.B = 3, p.cu_q = {0, 17, 17, 20}, p.cu_k = {0, 0, 23, 31};
                    EXPECT_EQ(failure(Behaviour::right, p, layout, pass), "")
                        << verify::name(layout) << ' ' << attention::name(type) << ' ' << ladder::name(pass);
                }
            }
        }
    }
}

TEST(Run, EmptyProblemsWork) {
    for (auto [B, Nq, Nk] : {std::tuple{0, 5, 5}, std::tuple{2, 0, 5}, std::tuple{2, 5, 0}, std::tuple{1, 0, 0}}) {
        Problem p = problem(Nq, Nk);
        p.B = B;
        EXPECT_EQ(failure(Behaviour::right, p), "") << attention::describe(p);
        EXPECT_EQ(failure(Behaviour::right, p, Layout::reversed), "") << attention::describe(p);
        EXPECT_EQ(failure(Behaviour::right, p, Layout::dense, Pass::backward), "") << attention::describe(p);
    }
}

TEST(Run, WrongElementIsNamedWithStageRungAndProblem) {
    const std::string text = failure(Behaviour::wrong, problem());
    EXPECT_CONTAINS(text, "Stage 00, rung a fake, forward");
    EXPECT_CONTAINS(text, "B=2 Hq=6 Hkv=2 Nq=17 Nk=23 d=16 fp16");
    EXPECT_CONTAINS(text, "O: error");
    EXPECT_CONTAINS(text, "16");  // the last row
}

TEST(Run, UnwrittenElementIsNamed) {
    const std::string text = failure(Behaviour::unwritten, problem());
    EXPECT_CONTAINS(text, "O[b=1, h=5, row=16, column=0] was not written");
}

TEST(Run, WriteBesideABufferIsReported) {
    if (!gpu::device().emulated) GTEST_SKIP() << "the fake can only write beside a buffer on the emulator";
    EXPECT_CONTAINS(failure(Behaviour::writes_beside, problem()), "wrote outside of O");
}

TEST(Run, WriteToAGapBetweenRowsIsReported) {
    EXPECT_EQ(failure(Behaviour::writes_gap, problem()), "");  // dense: there are no gaps
    EXPECT_CONTAINS(failure(Behaviour::writes_gap, problem(), Layout::strided), "of O, between its rows");
}

TEST(Run, ChangedInputIsReported) {
    EXPECT_CONTAINS(failure(Behaviour::changes_input, problem()), "changed its input at K[b=0, h=0, row=0, column=0]");
}

TEST(Run, RefusalIsTold) {
    const ladder::Rung rung = fakes::rung("a", Behaviour::refuses);
    const verify::Case the_case(problem());
    const verify::Result result = verify::Run(rung, the_case).verify();
    EXPECT_EQ(result.refused, "does nothing");
    EXPECT_FALSE(result.verified());
    EXPECT_CONTAINS(verify::failure(rung, the_case), "refused: does nothing");
}

TEST(Run, OperandsThatARungCannotUseAreRefused) {
    EXPECT_EQ(failure(Behaviour::cannot_use_layout, problem()), "");
    EXPECT_EQ(failure(Behaviour::cannot_use_layout, problem(), Layout::strided), "");
    EXPECT_CONTAINS(failure(Behaviour::cannot_use_layout, problem(), Layout::misaligned), "first element of Q is 1 ");
}

TEST(Run, ReportOfTheMachineIsAFault) {
    const ladder::Rung rung = fakes::rung("a", Behaviour::breaks_rule);
    const verify::Case the_case(problem());
    const verify::Result result = verify::Run(rung, the_case).verify();
    EXPECT_EQ(result.fault, "Kernel fake read shared memory that nobody wrote.");
    EXPECT_FALSE(result.verified());
}

TEST(Run, MemoryIsCountedInStorageTypes) {
    // Q and O: 2 * 6 * 17 * 16 elements of 2 bytes, L: 2 * 6 * 17 of 4, K and V: 2 * 2 * 23 * 16 of 2.
    const double expected = 2 * 2 * 3264 + 4 * 204 + 2 * 2 * 1472;
    EXPECT_EQ(verify::device_bytes(fakes::rung("a", Behaviour::right), problem()), expected);
    gpu::Device device{"small", false, 9, 0, 1, 0, static_cast<std::size_t>(expected), 0};
    EXPECT_FALSE(verify::too_large(fakes::rung("a", Behaviour::right), problem(), device));
    device.free_bytes -= 1;
    EXPECT_CONTAINS(*verify::too_large(fakes::rung("a", Behaviour::right), problem(), device), "19.30 KiB");
}

TEST(Run, WorkspacesOfOperandsThatDoNotFitAreNotAskedFor) {
    ladder::Rung rung = fakes::rung("a", Behaviour::right);
    int asked = 0;
    rung.workspaces = [&](const Problem&) { return ++asked, std::vector<ladder::Workspace>{{"S", 1}}; };
    gpu::Device device{"small", false, 9, 0, 1, 0, 2 * 2 * 3264 + 4 * 204 + 2 * 2 * 1472, 0};
    EXPECT_CONTAINS(*verify::too_large(rung, problem(), device), "are free");
    EXPECT_EQ(asked, 1);
    device.free_bytes -= 1;
    EXPECT_CONTAINS(*verify::too_large(rung, problem(), device), "19.30 KiB");
    EXPECT_EQ(asked, 1);
}

Problem paged_problem(int page_size) {
    Problem p = problem(5, 70);
    p.B = 3, p.cu_q = {0, 5, 5, 6}, p.cu_k = {0, 70, 86, 117};
    p.page_size = page_size;
    return p;
}

TEST(Run, PagedKeysAreFoundInEveryLayout) {
    for (int page_size : {16, 64}) {
        for (Layout layout :
             {Layout::dense, Layout::strided, Layout::reversed, Layout::shared_kv, Layout::misaligned}) {
            EXPECT_EQ(failure(Behaviour::right, paged_problem(page_size), layout, Pass::decode), "");
        }
    }
}

// (pages, page_size, Hkv, d): keys in the slots that the table names, NaN in all others.
TEST(Run, PagesLieInRandomOrderAndUnusedSlotsAreNan) {
    const verify::Case the_case(paged_problem(16));
    const Problem& p = the_case.problem();
    ladder::Rung rung = fakes::rung("a", Behaviour::right, Pass::decode);
    rung.launch = [&](const Problem&, ladder::Operands& operands) {
        std::vector<int> table(3 * 5);
        ASSERT_EQ(operands.page_table.buffer->bytes(), table.size() * sizeof(int));
        operands.page_table.buffer->read(table.data(), table.size() * sizeof(int));
        std::vector<std::uint16_t> K(p.pages * 16 * 2 * 16);
        ASSERT_EQ(operands.K.buffer->bytes(), K.size() * 2);
        operands.K.buffer->read(K.data(), K.size() * 2);
        std::size_t keys = 0;
        for (int b = 0; b < 3; ++b) {
            for (int j = 0; j < p.keys(b); ++j, ++keys) {
                for (int h = 0; h < 2; ++h) {
                    float row[16];
                    const std::size_t first = ((table[b * 5 + j / 16] * 16 + j % 16) * 2 + h) * 16;
                    verify::load(p.type, reinterpret_cast<const std::byte*>(&K[first]), 16, row);
                    for (int c = 0; c < 16; ++c) ASSERT_EQ(row[c], the_case.inputs().K.row(b, h, j)[c]);
                }
            }
        }
        EXPECT_EQ(std::count(K.begin(), K.end(), 0xFFFF), K.size() - keys * 2 * 16);
        EXPECT_FALSE(std::is_sorted(table.begin(), table.begin() + 5));
    };
    EXPECT_CONTAINS(verify::Run(rung, the_case).verify().reason(), "was not written");
}

TEST(Run, B48_BadPagesAreRefusedBeforeAnythingRuns) {
    Problem p = paged_problem(16);
    attention::draw_page_table(p, 1);
    p.page_table[2] = p.pages;
    EXPECT_THROW(verify::Case{p}, attention::InvalidProblem);
}

TEST(Run, PagesAreCountedInMemory) {
    Problem p = paged_problem(16);
    const ladder::Rung rung = fakes::rung("a", Behaviour::right, Pass::decode);
    // Q and O: 6 tokens of 6 heads of 16, L: 6 tokens of 6 heads; cumulative lengths: 2 * 4; a table of 3 rows of 5. Without a
    // table, every sequence might need 5 pages.
    const double rest = 2 * 2 * 6 * 6 * 16 + 4 * (6 * 6 + 2 * 4 + 3 * 5), page = 2 * 2 * 16 * 2 * 16;
    EXPECT_EQ(verify::device_bytes(rung, p), rest + 15 * page);
    attention::draw_page_table(p, 1);
    EXPECT_EQ(verify::device_bytes(rung, p), rest + p.pages * page);
}

TEST(Run, MoreHeadsThanAreDoneInMinutesAreTooManyEvenIfEmpty) {
    const ladder::Rung rung = fakes::rung("a", Behaviour::right);
    for (const bool emulated : {true, false}) {
        const gpu::Device device{"large", emulated, 9, 0, 1, 0, std::size_t(1) << 40, 0};
        Problem p = problem(0, 0);
        p.Hq = p.Hkv = 1;
        p.B = 1 << (emulated ? 18 : 24);
        EXPECT_FALSE(verify::too_large(rung, p, device));
        p.B += 1;
        EXPECT_CONTAINS(*verify::too_large(rung, p, device), "has B Hq = " + std::to_string(p.B));
        EXPECT_CONTAINS(*verify::too_large(rung, p, device), emulated ? "262144 heads" : "16777216 heads");
    }
}

// So large that rows are sampled: a backward has to be judged by rows of O and L that were computed.
TEST(Run, SlowLargeBackwardIsFedWhereItIsCompared) {
    Problem p = problem(40000, 40000);
    p.B = 1, p.Hq = 8, p.window_left = 3, p.window_right = 0;
    const verify::Case the_case(p);
    const auto computed = [&](int h, int i) { return *the_case.L().row(0, h, i) < 1e29f; };
    int rows = 0;
    for (const auto& [b, h, sampled] : verify::sample_queries(p, {})) {
        for (int i : sampled) EXPECT_TRUE(computed(h, i)) << h << ' ' << i;
    }
    for (const auto& [b, h_kv, sampled] : verify::sample_keys(p, {})) {
        for (int h = h_kv * 4; h < h_kv * 4 + 4; ++h) {
            for (int i = 0; i < p.Nq; ++i) rows += computed(h, i);
        }
    }
    EXPECT_GE(rows, 4 * p.Nq);
}

TEST(Registry, MakesRungsRefuseWhatTheyDoNotClaim) {
    ladder::Registry registry;
    registry.add(fakes::rung("a", Behaviour::right));
    registry.add(fakes::rung("a", Behaviour::refuses_small_d, Pass::decode));
    ladder::Rung special = fakes::rung("b", Behaviour::right);
    special.modifiers = true;
    special.deterministic = false;
    registry.add(special);
    const auto refusal = [&](int rung, auto change) {
        Problem p = problem();
        p.d = 64;
        change(p);
        return registry.rungs()[rung].refuses(p).value_or("");
    };
    const auto softcap = [](Problem& p) { p.softcap = 1; };
    const auto alibi = [](Problem& p) { p.alibi = true; };
    const auto pages = [](Problem& p) { p.page_size = 16; };
    const auto splits = [](Problem& p) { p.splits = 2; };
    const auto deterministic = [](Problem& p) { p.deterministic = true; };
    EXPECT_EQ(refusal(0, softcap), "has no softcap");
    EXPECT_EQ(refusal(0, alibi), "has no ALiBi");
    EXPECT_EQ(refusal(0, pages), "takes no pages, as only decoding rungs do");
    EXPECT_EQ(refusal(0, splits), "takes no number of splits, as only decoding rungs do");
    EXPECT_EQ(refusal(0, deterministic), "");
    EXPECT_EQ(refusal(1, pages), "");
    EXPECT_EQ(refusal(1, splits), "");
    EXPECT_EQ(refusal(1, [](Problem& p) { p.d = 8; }), "takes a d of 64 or more, not 8");
    EXPECT_EQ(refusal(2, softcap), "");
    EXPECT_EQ(refusal(2, alibi), "");
    EXPECT_EQ(refusal(2, deterministic), "sums in an order that changes from run to run");
}

TEST(Registry, TakesEachRungOnce) {
    ladder::Registry registry;
    registry.add(fakes::rung("a", Behaviour::right));
    registry.add(fakes::rung("a", Behaviour::right, Pass::backward));
    EXPECT_THROW(registry.add(fakes::rung("a", Behaviour::wrong)), std::logic_error);
    EXPECT_EQ(registry.rungs().size(), 2u);
}

}  // namespace
