# Sourced: build PROGRAM [PROGRAM ...] builds programs for the GPU of this machine, or for the software GPU where there is
# none; PRESET=emulator or PRESET=cuda chooses. Sets PRESET and BIN, the folder that holds them.
build() {
    bash common/scripts/install.sh
    local options=() capability
    if [ -z "${PRESET:-}" ]; then
        PRESET=emulator
        if { command -v nvcc || [ -x /usr/local/cuda/bin/nvcc ]; } > /dev/null && nvidia-smi -L > /dev/null 2>&1; then
            PRESET=cuda
            # Stages are built for 80 and newer unless an older GPU asks for less.
            capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
            [ "$capability" -ge 80 ] || options+=("-DCMAKE_CUDA_ARCHITECTURES=$capability")
        fi
    fi
    BIN=build/$PRESET/bin
    echo "Building $* (preset $PRESET) ..." >&2
    cmake --preset "$PRESET" "${options[@]}" > /dev/null
    cmake --build --preset "$PRESET" --target "$@" --parallel "$(nproc)" >&2
}
