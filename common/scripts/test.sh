#!/bin/bash
# test.sh [--slow]: the suite on the software GPU, then its small shapes under AddressSanitizer with
# UndefinedBehaviorSanitizer, and under ThreadSanitizer. The last line is the count over all three; exits with 1 if
# anything failed. With --slow also what carries the label slow: the grids of all lengths, every deletion, 200 seeds.
set -euo pipefail
labels=(-L quick)
if [ "${1:-}" = --slow ]; then labels=(); elif [ $# != 0 ]; then echo "test.sh: the only option is --slow" >&2 && exit 2; fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

bash common/scripts/install.sh
passed=0 failed=0 skipped=0
jobs=$(nproc)

# Sanitizers lay out their own memory map, which an address randomised over many bits can miss: switch that off where
# allowed.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2> /dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi

# run_part PRESET [TARGET ...]: builds the targets (all, without any), runs the preset's tests, adds to the counts.
run_part() {
    local preset=$1 status=0 junit attribute
    shift
    echo "== $preset: building"
    if ! { cmake --preset "$preset" > /dev/null &&
        cmake --build --preset "$preset" --parallel "$jobs" ${@:+--target "$@"}; }; then
        echo "== $preset: does not build"
        failed=$((failed + 1))
        return
    fi
    echo "== $preset: testing"
    junit=$PWD/build/$preset/tests.xml
    rm -f "$junit"
    "${fixed_addresses[@]}" ctest --preset "$preset" "${labels[@]}" --parallel "$jobs" --output-junit "$junit" || status=$?
    count() { sed -n "s/^[[:space:]]*$1=\"\([0-9]*\)\".*/\1/p" "$junit" 2> /dev/null | head -n 1 || true; }
    local tests failures not_run
    tests=$(count tests) failures=$(count failures) not_run=$(($(count disabled) + $(count skipped)))
    # ctest itself failed (no test at all, or none could be listed): that is a failure too.
    if [ "$status" != 0 ] && [ "${failures:-0}" = 0 ]; then failures=1 tests=$((${tests:-0} + 1)); fi
    passed=$((passed + tests - failures - not_run)) failed=$((failed + failures)) skipped=$((skipped + not_run))
}

run_part emulator
run_part emulator-asan gpu_test stage_tests labs
run_part emulator-tsan gpu_test stage_tests labs

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
