#include "common/ladder/npy.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <regex>
#include <sstream>

namespace ladder {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are copied as they lie in the file");

constexpr char magic[] = "\x93NUMPY";
constexpr std::size_t magic_bytes = 6;
constexpr std::uint32_t longest_header = 4096;

[[noreturn]] void fail(const std::string& path, const std::string& what) { throw BadFile(path + " " + what); }

float from_fp16(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float magnitude =
        exponent == 0 ? std::ldexp(float(fraction), -24) : std::ldexp(float(1024 + fraction), exponent - 25);
    if (exponent == 31)
        magnitude = fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    return bits & 0x8000 ? -magnitude : magnitude;
}

std::string whole_file(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream) fail(path, "cannot be opened.");
    std::ostringstream bytes;
    bytes << stream.rdbuf();
    if (!stream) fail(path, "cannot be read.");
    return bytes.str();
}

// Where the header's text begins, and how long it is.
std::pair<std::size_t, std::size_t> header_place(const std::string& path, const std::string& file) {
    if (file.size() < 10 || file.compare(0, magic_bytes, magic, magic_bytes) != 0)
        fail(path, "is not a NumPy file (.npy).");
    const int version = file[6];
    if (version != 1 && version != 2)
        fail(path, "is of version " + std::to_string(version) + " of the NumPy format; 1.0 and 2.0 are read.");
    const std::size_t length_bytes = version == 1 ? 2 : 4, begin = 8 + length_bytes;
    std::uint32_t length = 0;
    if (file.size() >= begin) std::memcpy(&length, file.data() + 8, length_bytes);
    if (file.size() < begin + length) fail(path, "ends inside its header.");
    if (length > longest_header)
        fail(path, "has a header of " + std::to_string(length) + " bytes; up to " + std::to_string(longest_header) +
                       " are read, and NumPy writes about a hundred.");
    return {begin, length};
}

}  // namespace

NpyArray read_npy(const std::string& path) {
    const std::string file = whole_file(path);
    const auto [begin, length] = header_place(path, file);
    const std::string header = file.substr(begin, length);
    std::smatch type, order, shape;
    if (!std::regex_search(header, type, std::regex("'descr': *'([^']*)'")) ||
        !std::regex_search(header, order, std::regex("'fortran_order': *(True|False)")) ||
        !std::regex_search(header, shape, std::regex("'shape': *\\(([0-9, ]*)\\)")))
        fail(path, "has a header that names no simple type, order and shape.");
    if (order[1] == "True") fail(path, "is in Fortran order; save numpy.ascontiguousarray of it.");

    NpyArray array;
    array.whole_numbers = type[1] == "<i4";
    const bool fp16 = type[1] == "<f2";
    if (!array.whole_numbers && !fp16 && type[1] != "<f4")
        fail(path, "holds " + type[1].str() + "; <f4 (fp32), <f2 (fp16) and, for lengths, <i4 (int32) are read.");

    // No size may overflow: more elements than the file has bytes are too many anyway.
    const std::size_t data = begin + length, bytes = file.size() - data;
    std::size_t elements = 1;
    std::istringstream sizes(shape[1].str());
    for (std::string size; std::getline(sizes, size, ',');) {
        if (size.find_first_not_of(' ') == std::string::npos) continue;
        const std::size_t first = size.find_first_not_of(' '), last = size.find_last_not_of(' ');
        if (size.find(' ', first) < last)
            fail(path, "has a shape of (" + shape[1].str() + "), which is no list of sizes.");
        if (size.size() > 11 || std::stoll(size) > std::numeric_limits<std::int32_t>::max())
            fail(path, "has a shape of (" + shape[1].str() + "); sizes up to 2147483647 are read.");
        array.shape.push_back(std::stoll(size));
        if (array.shape.back() != 0 && elements > (bytes + 1) / array.shape.back()) elements = bytes + 1;
        else elements *= array.shape.back();
    }
    const std::size_t width = fp16 ? 2 : 4;
    if (elements * width != bytes)
        fail(path, "has " + std::to_string(bytes) + " bytes of data, which is not what shape " +
                       shape_text(array.shape) + " of " + type[1].str() + " takes.");

    if (array.whole_numbers) {
        array.integers.resize(elements);
        std::memcpy(array.integers.data(), file.data() + data, bytes);
    } else if (fp16) {
        std::vector<std::uint16_t> halves(elements);
        std::memcpy(halves.data(), file.data() + data, bytes);
        for (std::uint16_t bits : halves) array.values.push_back(from_fp16(bits));
    } else {
        array.values.resize(elements);
        std::memcpy(array.values.data(), file.data() + data, bytes);
    }
    return array;
}

std::string npy_bytes(const std::vector<std::int64_t>& shape, const std::vector<float>& values) {
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape_text(shape) + ", }";
    header.resize((magic_bytes + 4 + header.size()) / 64 * 64 + 64 - magic_bytes - 4, ' ');  // data starts at 64 n
    header.back() = '\n';
    std::string file = std::string(magic, magic_bytes) + '\1' + '\0';
    file += static_cast<char>(header.size() & 255);
    file += static_cast<char>(header.size() >> 8);
    file += header;
    if (!values.empty()) file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    return file;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string text = "(";
    for (std::int64_t size : shape) text += std::to_string(size) + ", ";
    if (shape.size() > 1) text.resize(text.size() - 2);
    if (shape.size() == 1) text.pop_back();
    return text + ")";
}

}  // namespace ladder
