// What the tests of the emulator share: run a kernel, keep its report, run under many schedules.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/gpu/emulator/options.h"
#include "common/gpu/gpu.h"
#include "common/gpu/launch.h"

/// Options for the life of a test; the default ones come back afterwards.
struct ScopedOptions {
    explicit ScopedOptions(const emulator::Options& options) { emulator::set_options(options); }
    ScopedOptions(emulator::Schedule schedule, std::uint64_t seed = 1) {
        emulator::Options options;
        options.schedule = schedule;
        options.seed = seed;
        emulator::set_options(options);
    }
    ~ScopedOptions() { emulator::set_options({}); }
};

/// The report of a launch; empty if it broke no rule.
template <class... Parameters, class... Arguments>
std::string report_of(int ctas, int threads, std::size_t shared_bytes, void (*kernel)(Parameters...),
                      Arguments... arguments) {
    try {
        gpu::launch({"kernel_under_test", ctas, threads, shared_bytes}, kernel, arguments...);
    } catch (const gpu::Error& error) {
        return error.what();
    }
    return "";
}

/// How many of the standard schedules report the kernel.
template <class... Parameters, class... Arguments>
int schedules_that_report(const std::string& words, int threads, std::size_t shared_bytes,
                          void (*kernel)(Parameters...), Arguments... arguments) {
    int reports = 0;
    for (const emulator::Options& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        const std::string report = report_of(1, threads, shared_bytes, kernel, arguments...);
        if (!report.empty()) {
            ++reports;
            EXPECT_THAT(report, testing::HasSubstr(words));
        }
    }
    return reports;
}
