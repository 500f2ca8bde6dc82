# Read before project(): which machine the kernels are built for, and whether what that needs is here.
# Whatever is missing is said in one sentence, before CMake's own compiler tests can answer with a page of log.
include_guard(GLOBAL)

set(GPU_MACHINE emulator CACHE STRING "Machine that kernels are built for: emulator (any CPU) or cuda (an NVIDIA GPU)")
set_property(CACHE GPU_MACHINE PROPERTY STRINGS emulator cuda)
set(SANITIZER "" CACHE STRING "Sanitizer of an emulator build: empty, address (with undefined behaviour) or thread")
option(STATIC_RUNTIME "Link libstdc++ and libgcc statically, so that programs can be copied to another machine" OFF)

if(NOT GPU_MACHINE MATCHES "^(emulator|cuda)$")
    message(FATAL_ERROR "GPU_MACHINE is '${GPU_MACHINE}'; it can be emulator (any CPU) or cuda (an NVIDIA GPU).")
endif()
if(NOT SANITIZER MATCHES "^(|address|thread)$")
    message(FATAL_ERROR "SANITIZER is '${SANITIZER}'; it can be empty, address or thread.")
endif()
if(SANITIZER AND GPU_MACHINE STREQUAL cuda)
    message(FATAL_ERROR "SANITIZER is '${SANITIZER}' and GPU_MACHINE is cuda; host sanitizers work with "
                        "GPU_MACHINE=emulator only. On a GPU use compute-sanitizer on the built program.")
endif()
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(CCACHE ccache)
mark_as_advanced(CCACHE)
if(CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

if(NOT CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX})
    find_program(cxx_compiler NAMES c++ g++ clang++ NO_CACHE)
    if(NOT cxx_compiler)
        message(FATAL_ERROR "No C++ compiler was found. Install one that knows C++20 (Debian, Ubuntu: apt-get "
                            "install g++), or name yours with -DCMAKE_CXX_COMPILER=/path/to/g++.")
    endif()
endif()

# nvcc, its version, and the architectures asked for -------------------------------------------------------------------
if(GPU_MACHINE STREQUAL cuda)
    set(nvcc ${CMAKE_CUDA_COMPILER})
    if(NOT nvcc)
        set(nvcc $ENV{CUDACXX})
    endif()
    if(NOT nvcc)
        find_program(nvcc_found nvcc PATHS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin NO_CACHE)
        set(nvcc ${nvcc_found})
    endif()
    if(NOT nvcc)
        message(FATAL_ERROR "GPU_MACHINE is cuda and there is no nvcc in PATH or /usr/local/cuda/bin. Install the "
                            "CUDA Toolkit 13.0 or newer, or name its compiler with "
                            "-DCMAKE_CUDA_COMPILER=/path/to/nvcc; without a GPU build for the software one: cmake "
                            "--preset emulator.")
    endif()
    execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET RESULT_VARIABLE nvcc_failed)
    if(nvcc_failed OR NOT nvcc_says MATCHES "release ([0-9]+\\.[0-9]+)")
        message(FATAL_ERROR "'${nvcc} --version' does not answer like nvcc. Name the CUDA compiler with "
                            "-DCMAKE_CUDA_COMPILER=/path/to/nvcc, or build for the software GPU: cmake --preset "
                            "emulator.")
    endif()
    set(nvcc_version ${CMAKE_MATCH_1})
    if(nvcc_version VERSION_LESS 13.0)
        message(FATAL_ERROR "The CUDA Toolkit at ${nvcc} is version ${nvcc_version}; 13.0 or newer is needed. "
                            "Install it and name its compiler with -DCMAKE_CUDA_COMPILER=/path/to/nvcc, or build "
                            "for the software GPU: cmake --preset emulator.")
    endif()
    set(CMAKE_CUDA_COMPILER ${nvcc})

    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND DEFINED ENV{CUDAARCHS})
        set(CMAKE_CUDA_ARCHITECTURES $ENV{CUDAARCHS})
    endif()
    set(CHOSEN_ARCHITECTURES ${CMAKE_CUDA_ARCHITECTURES})  # empty: every stage has its own
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap,driver_version --format=csv,noheader
                    OUTPUT_VARIABLE gpus ERROR_QUIET RESULT_VARIABLE no_gpu)
    if(no_gpu)
        set(gpus "")
        message(WARNING "No NVIDIA GPU answers here (nvidia-smi fails or is missing). Everything is built, but "
                        "programs of this build can only run on a machine with a GPU and its driver.")
    elseif(gpus MATCHES ", ([0-9]+)" AND CMAKE_MATCH_1 LESS 580)
        message(WARNING "The NVIDIA driver is version ${CMAKE_MATCH_1}; CUDA 13 programs need 580 or newer. "
                        "Everything is built, but update the driver before running it here.")
    endif()
    if(CHOSEN_ARCHITECTURES STREQUAL native)
        string(REGEX MATCHALL "[0-9]+\\.[0-9]+," CHOSEN_ARCHITECTURES "${gpus}")
        list(TRANSFORM CHOSEN_ARCHITECTURES REPLACE "[.,]" "")
        list(REMOVE_DUPLICATES CHOSEN_ARCHITECTURES)
        if(NOT CHOSEN_ARCHITECTURES)
            message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES is native and no GPU answers here; name the architectures "
                                "by number, for example -DCMAKE_CUDA_ARCHITECTURES=\"80;90\".")
        endif()
    endif()
    execute_process(COMMAND ${nvcc} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
    string(REGEX MATCHALL "[0-9]+" known "${known}")
    foreach(architecture IN LISTS CHOSEN_ARCHITECTURES)
        if(NOT architecture MATCHES "^([0-9]+)[af]?(-real|-virtual)?$" OR NOT CMAKE_MATCH_1 IN_LIST known)
            list(JOIN known " " known)
            message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES asks for ${architecture}; nvcc ${nvcc_version} compiles "
                                "for ${known}. Choose among these, or leave the variable out and every stage takes "
                                "its own. (Architectures below 75, such as Volta's 70, left the toolkit with CUDA "
                                "13.)")
        endif()
    endforeach()
    if(NOT CHOSEN_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 80)  # for CMake's compiler test only; targets set their own
    else()
        set(CMAKE_CUDA_ARCHITECTURES ${CHOSEN_ARCHITECTURES})
    endif()
endif()
