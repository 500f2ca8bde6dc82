# Include this before project(). It picks the machine, and gives:
#   add_stage(NN ARCHITECTURES 80 90 [MINIMUM 75] [FROM_80 ...] [SOURCES ...] [LINK ...])
#                                                   the stage in this folder, its test and its benchmark
#   add_ladder()                                    the program `ladder` with every stage of the build
#   add_common_library, add_tests                   what common/CMakeLists.txt is made of
include_guard(GLOBAL)

cmake_path(SET REPOSITORY_ROOT NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../..)
set(CMAKE_PROJECT_INCLUDE ${CMAKE_CURRENT_LIST_DIR}/toolchain.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/machine.cmake)
include(GoogleTest)

# Architectures of a target with default ones `ARGN`, of which the user may have chosen others
# (CMAKE_CUDA_ARCHITECTURES). An architecture-specific one (90a) stands for itself alone, and is for targets that need it
# and those that no other chosen one covers; any other stands for itself and all that came later. result: empty if nothing that was
# chosen can run the target.
function(choose_architectures result minimum)
    set(chosen ${ARGN})
    if(CHOSEN_ARCHITECTURES)
        set(chosen "")
        set(general ${CHOSEN_ARCHITECTURES})
        list(FILTER general EXCLUDE REGEX "^[0-9]+[af]")
        foreach(architecture IN LISTS CHOSEN_ARCHITECTURES)
            string(REGEX MATCH "^[0-9]+" number ${architecture})
            if("${ARGN}" MATCHES "[af]")
                if("${number}a" IN_LIST ARGN)
                    list(APPEND chosen ${number}a)
                elseif("${number}f" IN_LIST ARGN)
                    list(APPEND chosen ${number}f)
                endif()
            elseif(number GREATER_EQUAL minimum)
                set(covered FALSE)  # by a chosen general one, whose PTX runs on this one too
                foreach(other IN LISTS general)
                    if(NOT architecture IN_LIST general AND NOT other MATCHES "real" AND other MATCHES "^([0-9]+)"
                       AND CMAKE_MATCH_1 GREATER_EQUAL minimum AND CMAKE_MATCH_1 LESS_EQUAL number)
                        set(covered TRUE)
                    endif()
                endforeach()
                if(NOT covered)
                    list(APPEND chosen ${architecture})
                endif()
            endif()
        endforeach()
        list(REMOVE_DUPLICATES chosen)
    endif()
    set(${result} ${chosen} PARENT_SCOPE)
endfunction()

# Kernel files: C++ for the software GPU, at an optimisation that a debugger can follow; CUDA otherwise.
function(set_kernel_language)
    if(GPU_MACHINE STREQUAL emulator)
        set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
                                    "$<$<NOT:$<BOOL:${SANITIZER}>>:-O1;-g>;-Wno-unknown-pragmas")
    endif()
endfunction()

# add_common_library(name SOURCES ... LINK ...): a library, or only its dependencies where a folder has headers alone.
function(add_common_library name)
    cmake_parse_arguments(PARSE_ARGV 1 library "" "" "SOURCES;LINK")
    if(library_SOURCES)
        add_library(${name} STATIC ${library_SOURCES})
        target_link_libraries(${name} PUBLIC ${library_LINK})
        set(kernels ${library_SOURCES})
        list(FILTER kernels INCLUDE REGEX "\\.cu$")
        if(kernels)
            set_kernel_language(${kernels})
            choose_architectures(architectures 75 80 90)
            set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${architectures}")
        endif()
    else()
        add_library(${name} INTERFACE)
        target_link_libraries(${name} INTERFACE ${library_LINK})
    endif()
endfunction()

# add_tests(program prefix ARCHITECTURES ... SOURCES ... LINK ...): one GoogleTest program. A test is called
# prefix.Suite.Name; those with "Slow" in their name carry the label slow, all others the label quick.
function(add_tests program prefix)
    cmake_parse_arguments(PARSE_ARGV 2 tests "" "" "ARCHITECTURES;SOURCES;LINK")
    add_executable(${program} ${tests_SOURCES})
    target_link_libraries(${program} PRIVATE ${tests_LINK} GTest::gtest_main)
    set(kernels ${tests_SOURCES})
    list(FILTER kernels INCLUDE REGEX "\\.cu$")
    if(kernels)
        set_kernel_language(${kernels})
        set_target_properties(${program} PROPERTIES CUDA_ARCHITECTURES "${tests_ARCHITECTURES}")
    endif()
    list(LENGTH tests_SOURCES count)
    if(count GREATER 5)  # to read GoogleTest takes longer than to compile most tests
        target_precompile_headers(${program} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:<gtest/gtest.h$<ANGLE-R>>")
        set_source_files_properties(${kernels} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
    # Listed when ctest runs, so that a build needs no GPU.
    gtest_discover_tests(${program} TEST_PREFIX ${prefix}. NO_PRETTY_VALUES TEST_FILTER "-*Slow*" DISCOVERY_MODE PRE_TEST
                         DISCOVERY_TIMEOUT 60 PROPERTIES LABELS quick TIMEOUT 300)
    gtest_discover_tests(${program} TEST_PREFIX ${prefix}. NO_PRETTY_VALUES TEST_FILTER "*Slow*" DISCOVERY_MODE PRE_TEST
                         DISCOVERY_TIMEOUT 60 PROPERTIES LABELS slow TIMEOUT 600)
endfunction()

# add_stage(NN ARCHITECTURES ... [MINIMUM ...]): stage.cu -> library stage_NN, test.cc and *_test.cc -> stage_NN_test, bench.cc ->
# stage_NN_bench. ARCHITECTURES: built by default. MINIMUM: the oldest that a user may choose (default: the first).
# FROM_80: kernel files of rungs that need 8.0 in a stage that does not; where only older architectures are chosen they are
# built for 8.0 all the same, and the ladder skips their rungs. SOURCES, LINK: more files and libraries of the stage.
function(add_stage number)
    cmake_parse_arguments(PARSE_ARGV 1 stage "" "MINIMUM" "ARCHITECTURES;FROM_80;SOURCES;LINK")
    if(NOT stage_MINIMUM)
        list(GET stage_ARCHITECTURES 0 stage_MINIMUM)
    endif()
    choose_architectures(architectures ${stage_MINIMUM} ${stage_ARCHITECTURES})
    if(GPU_MACHINE STREQUAL cuda AND NOT architectures)
        list(JOIN stage_ARCHITECTURES ", " built_for)
        set(sentence "Stage ${number} is left out: it is written for ${built_for} (oldest: ${stage_MINIMUM}), and "
                     "CMAKE_CUDA_ARCHITECTURES chooses ${CHOSEN_ARCHITECTURES}.")
        string(CONCAT sentence ${sentence})
        if(PROJECT_IS_TOP_LEVEL)
            message(FATAL_ERROR "${sentence} Nothing else is in this build; choose one of these, or leave the "
                                "variable out.")
        endif()
        message(WARNING "${sentence}")
        return()
    endif()
    if(PROJECT_IS_TOP_LEVEL)
        add_subdirectory(${REPOSITORY_ROOT}/common ${CMAKE_BINARY_DIR}/common)
    endif()

    add_library(stage_${number} STATIC stage.cu ${stage_SOURCES})
    set(kernels ${stage_SOURCES})
    list(FILTER kernels INCLUDE REGEX "\\.cu$")
    set_kernel_language(stage.cu ${kernels} ${stage_FROM_80})
    set_target_properties(stage_${number} PROPERTIES CUDA_ARCHITECTURES "${architectures}")
    target_link_libraries(stage_${number} PUBLIC registry ${stage_LINK})
    if(stage_FROM_80)
        choose_architectures(architectures_from_80 80 ${stage_ARCHITECTURES})
        if(NOT architectures_from_80)
            set(architectures_from_80 80)
        endif()
        add_library(stage_${number}_from_80 OBJECT ${stage_FROM_80})
        set_target_properties(stage_${number}_from_80 PROPERTIES CUDA_ARCHITECTURES "${architectures_from_80}")
        target_link_libraries(stage_${number}_from_80 PRIVATE registry ${stage_LINK})
        target_sources(stage_${number} PRIVATE $<TARGET_OBJECTS:stage_${number}_from_80>)
    endif()
    set_property(GLOBAL APPEND PROPERTY STAGES ${number})
    file(GLOB tests CONFIGURE_DEPENDS test.cc *_test.cc)
    if(tests)
        add_tests(stage_${number}_test stage_${number} SOURCES ${tests} LINK stage_${number} rung_tests)
        add_dependencies(stage_tests stage_${number}_test)
    endif()
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/bench.cc)
        add_executable(stage_${number}_bench bench.cc)
        target_link_libraries(stage_${number}_bench PRIVATE stage_${number} bench_core)
    endif()

    if(PROJECT_IS_TOP_LEVEL)
        add_ladder()
    endif()
endfunction()

# The library `build_facts`: ladder::build_description and ladder::build_commit of common/ladder/registry.h.
function(add_build_facts)
    set(BUILD_DESCRIPTION "${GPU_MACHINE}, ${CMAKE_BUILD_TYPE}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
    if(GPU_MACHINE STREQUAL cuda)
        string(APPEND BUILD_DESCRIPTION ", nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
    endif()
    find_commit(BUILD_COMMIT)
    configure_file(${REPOSITORY_ROOT}/common/cmake/build.cc.in ${CMAKE_BINARY_DIR}/generated/build.cc @ONLY)
    add_library(build_facts STATIC ${CMAKE_BINARY_DIR}/generated/build.cc)
    target_link_libraries(build_facts PUBLIC gpu attention)
endfunction()

# The library `stages`, ladder::register_stages of common/ladder/registry.h, and the programs with all stages of the
# build: ladder and bench.
function(add_ladder)
    get_property(stages GLOBAL PROPERTY STAGES)
    set(STAGE_DECLARATIONS "")
    set(STAGE_CALLS "")
    set(libraries "")
    foreach(stage IN LISTS stages)
        string(APPEND STAGE_DECLARATIONS
               "namespace stage${stage} {\nvoid register_stage(ladder::Registry& registry);\n}\n")
        string(APPEND STAGE_CALLS "    stage${stage}::register_stage(registry);\n")
        list(APPEND libraries stage_${stage})
    endforeach()
    if(NOT stages)
        set(STAGE_CALLS "    (void)registry;\n")
    endif()
    configure_file(${REPOSITORY_ROOT}/common/cmake/stages.cc.in ${CMAKE_BINARY_DIR}/generated/stages.cc @ONLY)
    add_library(stages STATIC ${CMAKE_BINARY_DIR}/generated/stages.cc)
    target_link_libraries(stages PUBLIC ${libraries} ladder_core build_facts)

    if(EXISTS ${REPOSITORY_ROOT}/common/ladder/main.cc)
        add_executable(ladder ${REPOSITORY_ROOT}/common/ladder/main.cc)
        target_link_libraries(ladder PRIVATE stages)
    endif()
    add_executable(bench ${REPOSITORY_ROOT}/common/profile/bench_main.cc)
    target_link_libraries(bench PRIVATE stages bench_core)
    if(GPU_MACHINE STREQUAL emulator)
        add_executable(trace ${REPOSITORY_ROOT}/common/profile/trace_main.cc)
        target_link_libraries(trace PRIVATE stages bench_core CLI11::CLI11)
    endif()
endfunction()

# The commit of the sources, or "unknown" outside a clone; a new commit configures again.
function(find_commit result)
    set(${result} unknown PARENT_SCOPE)
    execute_process(COMMAND git -C ${REPOSITORY_ROOT} rev-parse --short=12 HEAD OUTPUT_VARIABLE commit ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
    execute_process(COMMAND git -C ${REPOSITORY_ROOT} rev-parse --path-format=absolute --git-path logs/HEAD
                    OUTPUT_VARIABLE log ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT failed)
        set(${result} ${commit} PARENT_SCOPE)
        if(EXISTS "${log}")
            set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${log})
        endif()
    endif()
endfunction()
