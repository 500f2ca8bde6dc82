#!/bin/bash
# bench.sh [--baseline FILE] [--json FILE] [options of bench]: measures, and compares with a baseline. On a GPU: times, as
# shares of what the GPU's units reached in the same run; exits with 1 if a rung has lost more than 3 % and the samples say
# that this is no chance. On the emulator: what is counted must be what docs/results/counts.json says, exactly;
# `bench.sh --update` writes that file anew. BENCH=PATH takes a program as it is instead of building it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

baseline='' json=results/bench.json update='' options=()
while [ $# -gt 0 ]; do
    case $1 in
        --baseline | --json)
            [ $# -ge 2 ] || { echo "bench.sh: $1 needs a file" >&2 && exit 2; }
            if [ "$1" = --json ]; then json=$2; else baseline=$2; fi
            shift
            ;;
        --update) update=yes PRESET=emulator ;;
        *) options+=("$1") ;;
    esac
    shift
done

if [ -z "${BENCH:-}" ]; then
    source common/scripts/build.sh
    build bench
    BENCH=$BIN/bench
    if [ "$PRESET" = emulator ] && [ ${#options[@]} = 0 ]; then baseline=${baseline:-docs/results/counts.json}; fi
fi
mkdir -p results
"$BENCH" "${options[@]}" --json "$json"
if [ -n "$update" ]; then
    python3 common/profile/gate.py --write docs/results/counts.json "$json"
elif [ -n "$baseline" ]; then
    python3 common/profile/gate.py "$baseline" "$json"
fi
