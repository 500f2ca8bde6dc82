// Arithmetic with a hardware unit of its own, atomics, and the counters of both.
#include <bit>
#include <cmath>
#include <limits>

#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/region.h"

namespace emulator {

namespace {

constexpr float smallest_normal = 0x1p-126f;

float flush(float x) { return std::fabs(x) < smallest_normal ? std::copysign(0.0f, x) : x; }

float canonical_nan() { return std::bit_cast<float>(0x7FFFFFFFu); }

}  // namespace

float ex2_approx_ftz(float x) {
    ++totals.exponentials;
    if (std::isnan(x)) return canonical_nan();
    return flush(static_cast<float>(std::exp2(static_cast<double>(flush(x)))));
}

void count_polynomials(int count) { totals.polynomials += static_cast<std::uint64_t>(count); }
void count_rescale() { ++totals.rescales; }
void count_skipped_rescale() { ++totals.skipped_rescales; }

void red_global_add(const Region* region, float* pointer, float value, Site site) {
    {
        tsan::Ignore ignore;
        machine.operation();
        machine.thread("red.global.add");
        check_alignment(pointer, sizeof(float), site);
        count_ordinary_write(region, pointer, sizeof(float), "red.global.add", site);
        ++totals.atomics;
    }
#if GPU_TSAN
    auto* word = reinterpret_cast<volatile int*>(pointer);
    const float old = std::bit_cast<float>(__tsan_atomic32_load(word, 0));
#else
    const float old = *pointer;
#endif
    float sum = flush(flush(old) + flush(value));
    if (std::isnan(sum)) sum = canonical_nan();
#if GPU_TSAN
    __tsan_atomic32_store(word, std::bit_cast<int>(sum), 0);
#else
    *pointer = sum;
#endif
}

}  // namespace emulator
