#include "common/gpu/tests/probes/recording.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace probes {
namespace {

using Json = nlohmann::json;

/// FNV-1a over the words of one case.
std::uint64_t hash(const std::uint32_t* words, int n) {
    std::uint64_t h = 0xCBF29CE484222325u;
    for (int i = 0; i < n; ++i)
        for (int shift = 0; shift < 32; shift += 8) h = (h ^ (words[i] >> shift & 0xFF)) * 0x100000001B3u;
    return h;
}

template <class Integer>
void append(std::string& bytes, const std::vector<Integer>& integers) {
    for (const Integer value : integers)
        for (std::size_t i = 0; i < sizeof(Integer); ++i) bytes += static_cast<char>(value >> 8 * i);
}

template <class Integer>
std::vector<Integer> take(const std::string& bytes, std::size_t& position, std::size_t n) {
    if (n > (bytes.size() - position) / sizeof(Integer)) throw std::runtime_error("it ends too early");
    std::vector<Integer> integers(n);
    for (Integer& value : integers) {
        value = 0;
        for (std::size_t i = 0; i < sizeof(Integer); ++i)
            value |= static_cast<Integer>(static_cast<unsigned char>(bytes[position++])) << 8 * i;
    }
    return integers;
}

std::string hexadecimal(std::uint32_t word) {
    char text[16];
    std::snprintf(text, sizeof(text), "0x%08X", word);
    return text;
}

std::string number(float value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.9g", value);
    return text;
}

/// Why `result` is no ex2.approx.ftz of x; empty if it is one.
std::string exponential_difference(float x, float result) {
    const double exact = std::exp2(std::fabs(x) < 0x1p-126f ? 0.0 : double{x});
    constexpr double bound = 0x1p-22;
    bool right;
    if (std::isnan(x)) {
        right = std::isnan(result);
    } else if (exact >= 0x1p128) {
        right = std::isinf(result) && result > 0;
    } else if (exact < 0x1p-126 * (1 - bound)) {
        right = std::bit_cast<std::uint32_t>(result) == 0;
    } else {
        right = std::fabs(result - exact) <= bound * exact || (exact < 0x1p-126 * (1 + bound) && result == 0);
        if (std::trunc(x) == x) right = result == exact;
    }
    return right ? "" : "2^" + number(x) + " is given as " + number(result);
}

Agreement compare_exponentials(const Probe& probe, const Recorded& recorded) {
    Agreement agreement{probe.name, 0, probe.words.size(), ""};
    for (std::size_t i = 0; i < probe.words.size(); ++i) {
        agreement.agreeing += probe.words[i] == recorded.whole[i];
        if (!agreement.difference.empty()) continue;
        const float x = std::bit_cast<float>(probe.operands[i]);
        const std::string here = exponential_difference(x, std::bit_cast<float>(probe.words[i]));
        const std::string there = exponential_difference(x, std::bit_cast<float>(recorded.whole[i]));
        if (!here.empty()) agreement.difference = here + " here";
        if (!there.empty()) agreement.difference = there + " in the recording";
    }
    return agreement;
}

Agreement compare_bits(const Probe& probe, const Recorded& recorded) {
    Agreement agreement{probe.name, 0, probe.words.size(), ""};
    const auto note = [&](const std::string& difference) {
        if (agreement.difference.empty()) agreement.difference = difference;
    };
    const std::size_t case_words = probe.case_words, whole = recorded.whole.size();
    for (std::size_t i = 0; i < whole; ++i) {
        agreement.agreeing += probe.words[i] == recorded.whole[i];
        if (probe.words[i] != recorded.whole[i])
            note("case " + std::to_string(i / case_words) + ", word " + std::to_string(i % case_words) + ": " +
                 hexadecimal(probe.words[i]) + " here, " + hexadecimal(recorded.whole[i]) + " in the recording");
    }
    for (std::size_t i = 0; i < recorded.hashes.size(); ++i) {
        if (hash(probe.words.data() + whole + i * case_words, probe.case_words) == recorded.hashes[i]) {
            agreement.agreeing += case_words;
        } else {
            note("case " + std::to_string(whole / case_words + i) + ": its " + std::to_string(case_words) +
                 " words are not those of the recording, which has only their hash");
        }
    }
    return agreement;
}

}  // namespace

Recording record(const std::string& machine, const std::vector<Probe>& probes) {
    Recording recording{machine, {}};
    for (const Probe& probe : probes) {
        Recorded& recorded = recording.probes.emplace_back();
        recorded.name = probe.name;
        recorded.words = probe.words.size();
        recorded.case_words = probe.case_words;
        const std::size_t cases = probe.words.size() / probe.case_words, whole = std::min(cases, probe.whole_cases);
        recorded.whole.assign(probe.words.begin(), probe.words.begin() + whole * probe.case_words);
        for (std::size_t i = whole; i < cases; ++i)
            recorded.hashes.push_back(hash(probe.words.data() + i * probe.case_words, probe.case_words));
    }
    return recording;
}

void write(const std::string& file, const Recording& recording) {
    Json header{{"machine", recording.machine}, {"probes", Json::array()}};
    std::string words;
    for (const Recorded& probe : recording.probes) {
        header["probes"].push_back({{"name", probe.name},
                                    {"words", probe.words},
                                    {"case_words", probe.case_words},
                                    {"whole_words", probe.whole.size()},
                                    {"hashed_cases", probe.hashes.size()}});
        append(words, probe.whole);
        append(words, probe.hashes);
    }
    std::ofstream stream(file, std::ios::binary);
    stream << header.dump() << '\n' << words;
    stream.close();
    if (!stream) throw std::runtime_error("The recording cannot be written to " + file + ".");
}

Recording read(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) throw std::runtime_error("There is no recording " + file + " that can be read.");
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    try {
        std::size_t position = bytes.find('\n');
        if (position == std::string::npos) throw std::runtime_error("it has no header line");
        const Json header = Json::parse(bytes.substr(0, position++));
        Recording recording{header.at("machine"), {}};
        for (const Json& entry : header.at("probes")) {
            Recorded& probe = recording.probes.emplace_back();
            probe.name = entry.at("name");
            probe.words = entry.at("words");
            probe.case_words = entry.at("case_words");
            probe.whole = take<std::uint32_t>(bytes, position, entry.at("whole_words"));
            probe.hashes = take<std::uint64_t>(bytes, position, entry.at("hashed_cases"));
        }
        if (position != bytes.size()) throw std::runtime_error("it goes on after its last probe");
        return recording;
    } catch (const std::exception& error) {
        throw std::runtime_error(file + " is not a recording of probes: " + error.what() + ".");
    }
}

std::vector<Agreement> compare(const std::vector<Probe>& probes, const Recording& recording) {
    std::vector<Agreement> agreements;
    for (const Probe& probe : probes) {
        const auto recorded = std::find_if(recording.probes.begin(), recording.probes.end(),
                                           [&](const Recorded& other) { return other.name == probe.name; });
        const bool found = recorded != recording.probes.end();
        if (!found || recorded->words != probe.words.size() || recorded->case_words != probe.case_words ||
            recorded->whole.size() + recorded->hashes.size() * recorded->case_words != probe.words.size() ||
            (probe.exponential && !recorded->hashes.empty())) {
            agreements.push_back({probe.name, 0, probe.words.size(),
                                  found ? "the recording has other cases of it" : "the recording does not have it"});
        } else {
            agreements.push_back(!probe.exponential ? compare_bits(probe, *recorded)
                                                    : compare_exponentials(probe, *recorded));
        }
    }
    return agreements;
}

}  // namespace probes
