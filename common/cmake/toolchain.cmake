# Read by the first project() call: compilers, packages, and the options that hold for every target.
include_guard(GLOBAL)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
enable_testing()

# Host compiler --------------------------------------------------------------------------------------------------------
set(knows_cxx20 FALSE)
if(cxx_std_20 IN_LIST CMAKE_CXX_COMPILE_FEATURES)
    include(CheckCXXSourceCompiles)
    check_cxx_source_compiles("
        #include <bit>
        #include <concepts>
        #include <span>
        struct Shape { int rows = 0, columns = 0; };
        int main() {
            auto twice = []<class T>(T value) { return 2 * value; };
            return twice(Shape{.rows = 0}.rows);
        }" KNOWS_CXX20)
    set(knows_cxx20 ${KNOWS_CXX20})
endif()
if(NOT knows_cxx20)
    unset(KNOWS_CXX20 CACHE)
    message(FATAL_ERROR "${CMAKE_CXX_COMPILER} (${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}) cannot "
                        "compile C++20. g++ 11 or newer, or clang++ 14 or newer, can "
                        "(Debian, Ubuntu: apt-get install g++); name yours with -DCMAKE_CXX_COMPILER=/path/to/g++.")
endif()

# CUDA -----------------------------------------------------------------------------------------------------------------
if(GPU_MACHINE STREQUAL cuda)
    if(NOT CMAKE_CUDA_HOST_COMPILER AND NOT DEFINED ENV{CUDAHOSTCXX})
        set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})  # one compiler for .cc and for the host half of .cu
        # The toolkit states its own limit in a header; reading it there stays right for toolkits to come.
        file(REAL_PATH ${CMAKE_CUDA_COMPILER} nvcc_path)
        cmake_path(GET nvcc_path PARENT_PATH nvcc_folder)
        if(EXISTS ${nvcc_folder}/../include/crt/host_config.h)
            file(READ ${nvcc_folder}/../include/crt/host_config.h host_config)
        endif()
        set(newest "")
        if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND host_config MATCHES "__GNUC__ > ([0-9]+)")
            set(newest ${CMAKE_MATCH_1})
        elseif(CMAKE_CXX_COMPILER_ID STREQUAL Clang AND host_config MATCHES "__clang_major__ >= ([0-9]+)")
            math(EXPR newest "${CMAKE_MATCH_1} - 1")
        endif()
        string(REGEX MATCH "^[0-9]+" host_major "${CMAKE_CXX_COMPILER_VERSION}")
        if(newest AND host_major GREATER newest)
            message(FATAL_ERROR "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, too "
                                "new for CUDA ${nvcc_version}, which takes ${CMAKE_CXX_COMPILER_ID} up to ${newest}. "
                                "Install an older one and name it in a fresh build folder, for example "
                                "-DCMAKE_CXX_COMPILER=g++-${newest}.")
        endif()
    endif()
    # ptxas prints registers and spills to the terminal; the launcher keeps them beside each object, for check_ptxas.py.
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${REPOSITORY_ROOT}/common/scripts/keep_ptxas_log.sh)
    if(CCACHE)
        list(APPEND CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25.1 does not know it of nvcc
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    find_package(CUDAToolkit 13.0 REQUIRED)
endif()

# Packages -------------------------------------------------------------------------------------------------------------
find_package(Eigen3 3.4 QUIET NO_MODULE)
find_package(GTest QUIET)
find_path(GMOCK_HEADERS gmock/gmock.h)
mark_as_advanced(GMOCK_HEADERS)
if(GMOCK_HEADERS)
    set(GMock_FOUND TRUE)
endif()
find_package(benchmark QUIET)
find_package(CLI11 QUIET)
find_package(nlohmann_json QUIET)
set(package_Eigen3 libeigen3-dev)
set(package_GTest libgtest-dev)
set(package_GMock libgmock-dev)
set(package_benchmark libbenchmark-dev)
set(package_CLI11 libcli11-dev)
set(package_nlohmann_json nlohmann-json3-dev)
set(needed Eigen3 GTest GMock benchmark CLI11 nlohmann_json)
if(GPU_MACHINE STREQUAL emulator)
    find_package(Boost QUIET CONFIG COMPONENTS context)
    set(package_Boost libboost-context-dev)
    list(APPEND needed Boost)
endif()
set(missing "")
set(missing_packages "")
foreach(name IN LISTS needed)
    if(NOT ${name}_FOUND)
        list(APPEND missing ${name})
        list(APPEND missing_packages ${package_${name}})
    endif()
endforeach()
if(missing)
    list(TRANSFORM missing REPLACE "^Boost$" "Boost.Context")
    list(JOIN missing ", " missing)
    list(JOIN missing_packages " " missing_packages)
    message(FATAL_ERROR "Not found: ${missing}. On Debian and Ubuntu: apt-get install ${missing_packages}")
endif()

# Options of every target ----------------------------------------------------------------------------------------------
# Most of the host's code takes longer to compile than it ever runs; libraries that run long ask for -O3 themselves.
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")
# No contraction on the host: a * b + c must round twice wherever the source does not say fma.
include_directories(${REPOSITORY_ROOT})
add_compile_options(
    "$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-fno-strict-aliasing;-Wall;-Wextra>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffp-contract=off,-Wall;-lineinfo;--expt-relaxed-constexpr;-Xptxas=-v>")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # g++ 12 warns of its own std::string and, with -fsanitize, of its std::function
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
    if(SANITIZER)
        add_compile_options(-Wno-maybe-uninitialized)
    endif()
endif()
if(STATIC_RUNTIME)
    add_link_options(-static-libstdc++ -static-libgcc)
endif()
# Sanitizers run small shapes only: what a compiler spends on optimising instrumented code is more than the tests save. The
# emulator's own library is optimised all the same.
if(SANITIZER STREQUAL address)
    add_compile_options(-O0 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
    add_link_options(-fsanitize=address,undefined)
elseif(SANITIZER STREQUAL thread)
    add_compile_options(-O0 -g1 -fsanitize=thread)
    add_link_options(-fsanitize=thread)
endif()
