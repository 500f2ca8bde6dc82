#!/bin/bash
# run.sh [ladder options]: builds the ladder for the GPU of this machine, or for the software GPU where there is none,
# and runs it. Writes results/ladder.json and results/ladder.png and exits as the ladder does: 0 all verified, 1
# something wrong, 2 bad arguments, 3 nothing verified. PRESET=emulator or PRESET=cuda chooses the machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

bash common/scripts/install.sh

options=()
if [ -z "${PRESET:-}" ]; then
    PRESET=emulator
    if { command -v nvcc || [ -x /usr/local/cuda/bin/nvcc ]; } > /dev/null && nvidia-smi -L > /dev/null 2>&1; then
        PRESET=cuda
        # Stages are built for 80 and newer unless an older GPU asks for less.
        capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
        [ "$capability" -ge 80 ] || options+=("-DCMAKE_CUDA_ARCHITECTURES=$capability")
    fi
fi

echo "Building the ladder (preset $PRESET) ..."
cmake --preset "$PRESET" "${options[@]}" > /dev/null
cmake --build --preset "$PRESET" --target ladder --parallel "$(nproc)"

# --list, --explain and --help run nothing: there are no results then.
results=(--json results/ladder.json)
for option in "$@"; do case $option in --list | --explain | --help) results=() ;; esac; done

mkdir -p results
started=$(mktemp)
trap 'rm -f "$started"' EXIT
status=0
"build/$PRESET/bin/ladder" "${results[@]}" "$@" || status=$?

if [ results/ladder.json -nt "$started" ]; then
    python=/usr/bin/python3  # the one that the distribution's matplotlib belongs to
    [ -x "$python" ] || python=python3
    if "$python" common/plots/ladder.py results/ladder.json results/ladder.png; then
        echo "Written: results/ladder.json, results/ladder.png"
    fi
fi
exit "$status"
