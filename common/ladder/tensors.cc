#include "common/ladder/tensors.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>

#include "common/ladder/npy.h"
#include "common/ladder/output_file.h"

namespace ladder {
namespace {

using attention::HostTensor;
using attention::Problem;

std::string path_in(const std::string& folder, const std::string& name) {
    return (std::filesystem::path(folder) / (name + ".npy")).string();
}

// Cumulative lengths; empty if there is no such file.
std::vector<int> read_lengths(const std::string& folder, const std::string& name) {
    const std::string path = path_in(folder, name);
    if (!std::filesystem::exists(path)) return {};
    const NpyArray array = read_npy(path);
    if (!array.whole_numbers || array.shape.size() != 1 || array.integers.empty())
        throw BadFile(path + " is to hold cumulative lengths: one dimension of int32, B + 1 numbers from 0.");
    if (array.integers[0] != 0 || !std::is_sorted(array.integers.begin(), array.integers.end()))
        throw BadFile(path + " is to hold cumulative lengths, which start at 0 and never fall.");
    return array.integers;
}

int longest(const std::vector<int>& cu) {
    int length = 0;
    for (std::size_t b = 0; b + 1 < cu.size(); ++b) length = std::max(length, cu[b + 1] - cu[b]);
    return length;
}

NpyArray read_values(const std::string& path, std::size_t axes) {
    NpyArray array = read_npy(path);
    if (array.whole_numbers) throw BadFile(path + " holds int32; give fp32 or fp16.");
    if (array.shape.size() != axes)
        throw BadFile(path + " has shape " + shape_text(array.shape) + "; " +
                      (axes == 4 ? "4 axes (B, H, N, d) are needed, or cu_q.npy and cu_k.npy beside it."
                                 : "with cu_q.npy and cu_k.npy, 3 axes (total, H, d) are needed."));
    return array;
}

void expect_shape(const std::string& path, const NpyArray& array, const std::vector<std::int64_t>& shape) {
    if (array.shape != shape)
        throw BadFile(path + " has shape " + shape_text(array.shape) + "; the other files ask for " +
                      shape_text(shape) + ".");
}

void fill(HostTensor& tensor, const std::string& path, const NpyArray& array, attention::DataType type) {
    std::transform(array.values.begin(), array.values.end(), tensor.values.begin(), [&](float value) {
        const float rounded = attention::round_to(type, value);
        if (std::isfinite(value) && !std::isfinite(rounded)) {
            std::ostringstream number;
            number << value;
            throw BadFile(path + " holds " + number.str() + ", which is beyond the range of " + attention::name(type) +
                          "; choose another --dtype.");
        }
        return rounded;
    });
}

std::filesystem::path output_folder(const std::string& folder, const Rung& rung) {
    return std::filesystem::path(folder) / (rung.stage + rung.letter + "_" + name(rung.pass));
}

std::vector<std::string> output_names(const Rung& rung) {
    if (rung.pass == Pass::backward) return {"dQ", "dK", "dV"};
    return {"O", "L"};
}

}  // namespace

Tensors read_tensors(const std::string& folder, Problem& problem) {
    problem.cu_q = read_lengths(folder, "cu_q");
    problem.cu_k = read_lengths(folder, "cu_k");
    if (problem.cu_q.size() != problem.cu_k.size()) {
        throw BadFile(path_in(folder, "cu_q") + " and cu_k.npy have " + std::to_string(problem.cu_q.size()) + " and " +
                      std::to_string(problem.cu_k.size()) + " numbers (0: no file); both or neither are needed, and " +
                      "as many in one as in the other.");
    }
    const std::size_t axes = problem.packed() ? 3 : 4;
    const NpyArray Q = read_values(path_in(folder, "Q"), axes), K = read_values(path_in(folder, "K"), axes);
    const NpyArray V = read_values(path_in(folder, "V"), axes);
    problem.Hq = Q.shape[1];
    problem.Hkv = K.shape[1];
    problem.d = Q.shape[axes - 1];
    problem.B = problem.packed() ? problem.cu_q.size() - 1 : Q.shape[0];
    problem.Nq = problem.packed() ? longest(problem.cu_q) : Q.shape[2];
    problem.Nk = problem.packed() ? longest(problem.cu_k) : K.shape[2];

    attention::validate(problem);

    // All shapes before any memory: each file agrees with the first that named a size.
    const std::int64_t B = problem.B, Hq = problem.Hq, Hkv = problem.Hkv, Nq = problem.Nq, Nk = problem.Nk;
    const std::int64_t d = problem.d;
    using Shape = std::vector<std::int64_t>;
    const Shape q = problem.packed() ? Shape{problem.cu_q.back(), Hq, d} : Shape{B, Hq, Nq, d};
    const Shape k = problem.packed() ? Shape{problem.cu_k.back(), Hkv, d} : Shape{B, Hkv, Nk, d};
    expect_shape(path_in(folder, "Q"), Q, q);
    expect_shape(path_in(folder, "K"), K, k);
    expect_shape(path_in(folder, "V"), V, k);
    Tensors tensors{folder, {}, std::filesystem::exists(path_in(folder, "dO"))};
    NpyArray dO;
    if (tensors.has_dO) {
        dO = read_values(path_in(folder, "dO"), axes);
        expect_shape(path_in(folder, "dO"), dO, q);
    }

    attention::Inputs& inputs = tensors.inputs;
    inputs.Q = inputs.dO = attention::query_tensor(problem);
    inputs.K = inputs.V = attention::key_tensor(problem);
    fill(inputs.Q, path_in(folder, "Q"), Q, problem.type);
    fill(inputs.K, path_in(folder, "K"), K, problem.type);
    fill(inputs.V, path_in(folder, "V"), V, problem.type);
    if (tensors.has_dO) fill(inputs.dO, path_in(folder, "dO"), dO, problem.type);
    return tensors;
}

void check_outputs(const std::string& folder, const Rung& rung) {
    const std::filesystem::path place = output_folder(folder, rung);
    if (!std::filesystem::exists(place)) {
        OutputFile(place.string());  // it can be made
    } else if (!std::filesystem::is_directory(place)) {
        throw std::runtime_error(place.string() + ": a file lies where the folder of results is to be; move it away.");
    } else {
        for (const std::string& name : output_names(rung)) OutputFile((place / (name + ".npy")).string());
    }
}

void write_outputs(const std::string& folder, const Rung& rung, const verify::Run& run) {
    const std::filesystem::path place = output_folder(folder, rung);
    std::filesystem::create_directories(place);
    for (const std::string& name : output_names(rung)) {
        const HostTensor tensor = run.output(name);
        std::vector<std::int64_t> shape = {tensor.B, tensor.H, tensor.N};
        if (!tensor.cu.empty()) shape = {tensor.cu.back(), tensor.H};
        if (name != "L") shape.push_back(tensor.d);
        OutputFile((place / (name + ".npy")).string()).commit(npy_bytes(shape, tensor.values));
    }
}

}  // namespace ladder
