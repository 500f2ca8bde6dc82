// Arrays from files to files, as a user of --tensors meets them.
#include "common/ladder/tensors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/ladder/ladder.h"
#include "common/ladder/npy.h"
#include "common/ladder/tests/fakes.h"

namespace {

using fakes::Behaviour;

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

struct Outcome {
    int status;
    std::string out, err;
};

class Tensors : public testing::Test {
  protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("tensors_test_" + std::to_string(::getpid()) + "_" +
                                                      testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::string path(const std::string& name) const { return (folder_ / name).string(); }
    void write(const std::string& name, const std::string& bytes) const {
        std::ofstream(path(name), std::ios::binary) << bytes;
    }
    void write_array(const std::string& name, const std::vector<std::int64_t>& shape) const {
        std::size_t elements = 1;
        for (std::int64_t size : shape) elements *= size;
        std::vector<float> values(elements);
        for (std::size_t n = 0; n < elements; ++n) values[n] = static_cast<float>(n % 7) - 3;
        write(name, ladder::npy_bytes(shape, values));
    }
    void write_lengths(const std::string& name, const std::vector<std::int32_t>& lengths) const {
        std::vector<float> words(lengths.size());
        std::memcpy(words.data(), lengths.data(), 4 * lengths.size());
        std::string bytes = ladder::npy_bytes({static_cast<std::int64_t>(lengths.size())}, words);
        bytes.replace(bytes.find("<f4"), 3, "<i4");
        write(name, bytes);
    }
    void write_dense() const {
        write_array("Q.npy", {2, 4, 5, 8});
        write_array("K.npy", {2, 2, 7, 8});
        write_array("V.npy", {2, 2, 7, 8});
    }
    Outcome run(std::vector<const char*> more = {}) const {
        ladder::Registry registry;
        registry.add(fakes::rung("a", Behaviour::right));
        registry.add(fakes::rung("a", Behaviour::right, ladder::Pass::backward));
        const std::string folder = folder_.string();
        std::vector<const char*> arguments = {"ladder", "--tensors", folder.c_str()};
        arguments.insert(arguments.end(), more.begin(), more.end());
        std::ostringstream out, err;
        const int status = ladder::run(registry, {"a compiler", "a commit"}, static_cast<int>(arguments.size()),
                                       arguments.data(), out, err);
        return {status, out.str(), err.str()};
    }

    std::filesystem::path folder_;
};

TEST_F(Tensors, WhatIsWrittenIsRead) {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{}, {3}, {0}, {2, 3}, {2, 0, 5}, {1, 2, 3, 4}}) {
        write_array("x.npy", shape);
        const ladder::NpyArray array = ladder::read_npy(path("x.npy"));
        EXPECT_EQ(array.shape, shape);
        EXPECT_FALSE(array.whole_numbers);
        for (std::size_t n = 0; n < array.values.size(); ++n) EXPECT_EQ(array.values[n], float(n % 7) - 3);
        EXPECT_EQ(std::filesystem::file_size(path("x.npy")) - 4 * array.values.size(), 128u);  // 64 n, as NumPy aligns
    }
}

TEST_F(Tensors, HalvesAreExact) {
    std::string bytes = ladder::npy_bytes({3}, {0, 0, 0});
    bytes.replace(bytes.find("<f4"), 3, "<f2");
    bytes.resize(128);
    for (int word : {0x3C01, 0x8001, 0x7BFF})
        bytes += static_cast<char>(word & 255), bytes += static_cast<char>(word >> 8);
    write("x.npy", bytes);
    EXPECT_EQ(ladder::read_npy(path("x.npy")).values, (std::vector<float>{1 + 0x1p-10f, -0x1p-24f, 65504}));
}

TEST_F(Tensors, ForwardWritesOAndLOfEachRung) {
    write_dense();
    const Outcome outcome = run({"--dtype", "fp32", "--mask", "none"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_CONTAINS(outcome.out, "B=2 Hq=4 Hkv=2 Nq=5 Nk=7 d=8 fp32 none");
    EXPECT_CONTAINS(outcome.out, "needs dO.npy, which");
    EXPECT_EQ(ladder::read_npy(path("00a_forward/O.npy")).shape, (std::vector<std::int64_t>{2, 4, 5, 8}));
    EXPECT_EQ(ladder::read_npy(path("00a_forward/L.npy")).shape, (std::vector<std::int64_t>{2, 4, 5}));
    EXPECT_FALSE(std::filesystem::exists(path("00a_backward")));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path("00a_forward")), {}), 2);
}

TEST_F(Tensors, ValuesAreThoseOfTheFiles) {
    write("Q.npy", ladder::npy_bytes({1, 1, 1, 1}, {1}));
    write("K.npy", ladder::npy_bytes({1, 1, 4, 1}, {1, 2, 3, 4}));
    write("V.npy", ladder::npy_bytes({1, 1, 4, 1}, {10, 20, 30, 40}));
    EXPECT_EQ(run({"--dtype", "fp32", "--mask", "none"}).status, 0);
    EXPECT_NEAR(ladder::read_npy(path("00a_forward/O.npy")).values.at(0), 34.93, 5e-3);
    EXPECT_NEAR(ladder::read_npy(path("00a_forward/L.npy")).values.at(0), 4.44019, 1e-5);  // 4 + log 1.5530
    EXPECT_CONTAINS(run({"--explain", "--dtype", "fp32", "--mask", "none"}).out, "O = u / l = 34.92");
}

TEST_F(Tensors, GradientsAndPackedSequences) {
    write_array("Q.npy", {5, 4, 8});
    write_array("dO.npy", {5, 4, 8});
    write_array("K.npy", {9, 2, 8});
    write_array("V.npy", {9, 2, 8});
    write_lengths("cu_q.npy", {0, 2, 2, 5});
    write_lengths("cu_k.npy", {0, 6, 8, 9});
    const Outcome outcome = run();
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_CONTAINS(outcome.out, "B=3 Hq=4 Hkv=2 Nq=3 Nk=6 d=8 bf16 causal seqlens=2:6,0:2,3:1");
    EXPECT_EQ(ladder::read_npy(path("00a_forward/L.npy")).shape, (std::vector<std::int64_t>{5, 4}));
    EXPECT_EQ(ladder::read_npy(path("00a_backward/dQ.npy")).shape, (std::vector<std::int64_t>{5, 4, 8}));
    EXPECT_EQ(ladder::read_npy(path("00a_backward/dV.npy")).shape, (std::vector<std::int64_t>{9, 2, 8}));
}

TEST_F(Tensors, BadFilesAreRefusedByNameBeforeAnythingRuns) {
    const std::string good = ladder::npy_bytes({2, 2, 7, 8}, std::vector<float>(224));
    const auto changed = [&](const std::string& from, const std::string& to) {
        std::string bytes = good;
        return bytes.replace(bytes.find(from), from.size(), to);
    };
    const struct {
        std::string bytes;
        const char* said;
    } cases[] = {
        {"", "V.npy is not a NumPy file"},
        {"\x93NUMPY\x01", "V.npy is not a NumPy file"},
        {good.substr(0, 40), "V.npy ends inside its header"},
        {good.substr(0, good.size() - 1), "V.npy has 895 bytes of data"},
        {good + "x", "V.npy has 897 bytes of data"},
        {changed("<f4", "<f8"), "V.npy holds <f8"},
        {changed("<f4", ">f4"), "V.npy holds >f4"},
        {changed("<f4", "<i4"), "V.npy holds int32"},
        {changed("False", "True "), "V.npy is in Fortran order"},
        {changed("\x01", "\x03"), "V.npy is of version 3"},
        {changed("(2, 2, 7, 8)", "(2, 2, 8, 7)"), "V.npy has shape (2, 2, 8, 7); the other files ask for (2, 2, 7, 8)"},
        {changed("(2, 2, 7, 8)", "(4, 7, 8)   "), "V.npy has shape (4, 7, 8); 4 axes"},
        {changed("(2, 2, 7, 8)", "(2, 2, 7, x)"), "V.npy has a header"},
        {changed("(2, 2, 7, 8)", "(9999999999)"), "V.npy has a shape of (9999999999)"},
    };
    write_dense();
    for (const auto& bad : cases) {
        write("V.npy", bad.bytes);
        const Outcome outcome = run();
        EXPECT_EQ(outcome.status, 2) << bad.said;
        EXPECT_CONTAINS(outcome.err, bad.said);
        EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
        EXPECT_FALSE(std::filesystem::exists(path("00a_forward")));
    }
    write_dense();
    write_array("dO.npy", {2, 4, 6, 8});
    EXPECT_CONTAINS(run().err, "dO.npy has shape (2, 4, 6, 8); the other files ask for (2, 4, 5, 8)");
    std::filesystem::remove(path("dO.npy"));
    write_array("Q.npy", {2, 3, 5, 8});
    EXPECT_CONTAINS(run().err, "Hq = 3 is not a multiple of Hkv = 2");
    write_lengths("cu_q.npy", {0, 2});
    EXPECT_CONTAINS(run().err, "cu_q.npy and cu_k.npy have 2 and 0 numbers");
    write_lengths("cu_k.npy", {0, 5, 2});
    EXPECT_CONTAINS(run().err, "cu_k.npy is to hold cumulative lengths, which start at 0 and never fall");
}

TEST_F(Tensors, WhatLiesInTheWayOfResultsIsNamedBeforeAnythingRuns) {
    write_dense();
    write("00a_backward", "in nobody's way: without dO.npy there is no backward");
    EXPECT_EQ(run().status, 0);
    std::filesystem::remove_all(path("00a_forward"));
    write("00a_forward", "kept");
    const Outcome file = run();
    EXPECT_EQ(file.status, 2);
    EXPECT_CONTAINS(file.err, "00a_forward: a file lies where the folder of results is to be; move it away.");
    std::filesystem::remove(path("00a_forward"));
    std::filesystem::create_directories(path("00a_forward/L.npy"));
    const Outcome folder = run();
    EXPECT_EQ(folder.status, 2);
    EXPECT_CONTAINS(folder.err, "00a_forward/L.npy cannot be written: it is a directory");
    for (const Outcome& outcome : {file, folder}) {
        EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
        EXPECT_EQ(outcome.out, "");
    }
    EXPECT_FALSE(std::filesystem::exists(path("00a_forward/O.npy")));
}

TEST_F(Tensors, SeedThatNothingDependsOnIsRefused) {
    write_dense();
    EXPECT_EQ(run({"--seed", "3"}).status, 2);
    EXPECT_CONTAINS(run({"--seed", "3"}).err, "--seed: the files of --tensors hold the inputs");
    EXPECT_EQ(run({"--seed", "3", "--dropout", "0.25"}).status, 0);
    EXPECT_NE(run({"--seed", "3", "--page-size", "16"}).status, 2);  // the order of the pages
}

TEST_F(Tensors, NumPyReadsWhatIsWrittenAndWritesWhatIsRead) {
    const auto has_numpy = [](const std::string& program) {
        return std::system((program + " -c 'import numpy' > /dev/null 2>&1").c_str()) == 0;
    };
    const std::string program = has_numpy("python3") ? "python3" : "/usr/bin/python3";  // the distribution's
    if (!has_numpy(program)) GTEST_SKIP() << "No python3 has NumPy here, which this test compares with.";
    const auto python = [&](const std::string& lines) {
        std::ofstream(path("script.py")) << "import numpy as np\n" << lines;
        return std::system(("cd " + folder_.string() + " && " + program + " script.py").c_str());
    };
    ASSERT_EQ(python("np.save('a', np.arange(24, dtype=np.float16).reshape(2, 3, 4) / 8)\n"
                     "np.save('b', np.array([0, 5, 7], dtype=np.int32))\n"
                     "with open('c.npy', 'wb') as f:\n"
                     "    np.lib.format.write_array(f, np.ones((2, 1), dtype=np.float32), version=(2, 0))\n"),
              0);
    const ladder::NpyArray a = ladder::read_npy(path("a.npy")), c = ladder::read_npy(path("c.npy"));
    EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 3, 4}));
    EXPECT_EQ(a.values.at(23), 23 / 8.0f);
    EXPECT_EQ(ladder::read_npy(path("b.npy")).integers, (std::vector<std::int32_t>{0, 5, 7}));
    EXPECT_EQ(c.shape, (std::vector<std::int64_t>{2, 1}));
    EXPECT_EQ(c.values, (std::vector<float>{1, 1}));
    write_array("d.npy", {2, 3, 5});
    write_array("e.npy", {4});
    EXPECT_EQ(python("d, e = np.load('d.npy'), np.load('e.npy')\n"
                     "assert d.dtype == np.float32 and d.shape == (2, 3, 5) and d.flags.c_contiguous\n"
                     "assert (d.ravel() == np.arange(30) % 7 - 3).all() and e.shape == (4,)\n"),
              0);
}

}  // namespace
