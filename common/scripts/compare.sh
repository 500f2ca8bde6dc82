#!/bin/bash
# compare.sh [--peers flash,cudnn,efficient,math,flex] [--json FILE] [options of bench]: our rungs and PyTorch's attention,
# measured in step on the GPU of this machine, in one table. Needs PyTorch; PYTHON names the interpreter that has it
# (python3). BENCH=PATH takes a program as it is instead of building it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ -z "${BENCH:-}" ]; then
    source common/scripts/build.sh
    build bench
    BENCH=$BIN/bench
fi
exec "${PYTHON:-python3}" common/profile/compare.py "$BENCH" "$@"
