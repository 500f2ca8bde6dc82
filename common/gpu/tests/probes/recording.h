// What the probes answered on one machine, kept in a file: a line of JSON that says what follows, then the words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/gpu/tests/probes/probes.h"

namespace probes {

struct Recorded {
    std::string name;
    std::size_t words = 0;  // of the probe
    int case_words = 1;
    std::vector<std::uint32_t> whole;   // the words of the first cases
    std::vector<std::uint64_t> hashes;  // of each case after them
};

struct Recording {
    std::string machine;
    std::vector<Recorded> probes;
};

Recording record(const std::string& machine, const std::vector<Probe>& probes);

/// Both throw std::runtime_error, naming the file, if it cannot be written, or read as a recording.
void write(const std::string& file, const Recording& recording);
Recording read(const std::string& file);

struct Agreement {
    std::string name;
    std::size_t agreeing = 0, compared = 0;  // words; a case of which there is a hash counts as a whole
    std::string difference;                  // the first one that matters, in words; empty if there is none
};

/// Bit by bit, but for exponentials: both must be within 2^-22 of the exact value and equal where 2^x is special.
std::vector<Agreement> compare(const std::vector<Probe>& probes, const Recording& recording);

}  // namespace probes
