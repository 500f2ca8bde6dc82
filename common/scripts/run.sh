#!/bin/bash
# run.sh [ladder options]: builds the ladder for the GPU of this machine, or for the software GPU where there is none,
# and runs it. Writes results/ladder.json and results/ladder.png and exits as the ladder does: 0 all verified, 1
# something wrong, 2 bad arguments, 3 nothing verified. PRESET=emulator or PRESET=cuda chooses the machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

source common/scripts/build.sh
build ladder

# --list, --explain and --help run nothing: there are no results then.
results=(--json results/ladder.json)
for option in "$@"; do case $option in --list | --explain | --help) results=() ;; esac; done

mkdir -p results
started=$(mktemp)
trap 'rm -f "$started"' EXIT
status=0
"$BIN/ladder" "${results[@]}" "$@" || status=$?

if [ results/ladder.json -nt "$started" ]; then
    python=/usr/bin/python3  # the one that the distribution's matplotlib belongs to
    [ -x "$python" ] || python=python3
    if "$python" common/plots/ladder.py results/ladder.json results/ladder.png; then
        echo "Written: results/ladder.json, results/ladder.png"
    fi
fi
exit "$status"
