// Arrays in files as NumPy writes them (.npy): versions 1.0 and 2.0, little-endian fp32, fp16 and int32 in C order.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace ladder {

/// A file that cannot be read as an array. what() names the file, what is wrong and what is allowed.
struct BadFile : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct NpyArray {
    std::vector<std::int64_t> shape;
    std::vector<float> values;           // of an fp32 or fp16 array
    std::vector<std::int32_t> integers;  // of an int32 array
    bool whole_numbers = false;          // int32
};

/// Throws BadFile.
NpyArray read_npy(const std::string& path);

/// The bytes of a file that holds `values` (fp32) in that shape.
std::string npy_bytes(const std::vector<std::int64_t>& shape, const std::vector<float>& values);

/// "(2, 3)", as Python writes it: "(2,)" for one dimension.
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace ladder
