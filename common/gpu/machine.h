// Which machine this translation unit is built for, and the words of CUDA C++ that a plain compiler lacks.
//
// The build sets GPU_EMULATOR: 0 = nvcc and a real GPU, 1 = the GPU in software (common/gpu/emulator). Only common/gpu
// asks; a kernel never does.
#pragma once

#include <cstdint>

#ifndef GPU_EMULATOR
#error "GPU_EMULATOR is set by the build: 1 for the emulator, 0 for a real GPU"
#endif

#if GPU_EMULATOR

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __grid_constant__

// A function that kernels call.
#define GPU_DEVICE inline
#define GPU_HOST_DEVICE inline

#include "common/gpu/emulator/emulator.h"

// Where in the kernel an instruction stands: the emulator names it in every report. Last parameter of each instruction.
#define GPU_SITE , ::emulator::Site site = ::emulator::Site::current()
#define GPU_ONLY_SITE ::emulator::Site site = ::emulator::Site::current()
#define GPU_PASS_SITE , site

// A check or a count that only the emulator makes.
#define EMULATED(...) __VA_ARGS__

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct uint3 {
    unsigned x, y, z;
};

// Set by the emulator whenever it switches to a thread.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

#else

#include <cuda_runtime.h>

#define GPU_DEVICE __device__ __forceinline__
#define GPU_HOST_DEVICE __host__ __device__ __forceinline__
#define GPU_SITE
#define GPU_ONLY_SITE
#define GPU_PASS_SITE
#define EMULATED(...)

#endif
