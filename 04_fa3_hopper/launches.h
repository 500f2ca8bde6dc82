// How the forward rungs are launched; 04b, 04c and 04d with marks (marks.h) or without.
#pragma once

#include "04_fa3_hopper/a_tma_wgmma.cuh"
#include "04_fa3_hopper/b_specialised.cuh"
#include "04_fa3_hopper/c_ping_pong.cuh"
#include "04_fa3_hopper/d_overlap.cuh"
#include "04_fa3_hopper/operands.h"

namespace stage04 {

/// Launches 04a, 04b or 04c, which take the same operands.
template <class T, class Kernel, class... Marks>
void launch(const gpu::LaunchShape& shape, Kernel kernel, const attention::Problem& problem, ladder::Operands& operands,
            int Bc, Marks... marks) {
    const Maps maps{problem};
    gpu::launch(shape, kernel, ladder::kernel_problem(problem, operands), maps.queries<T>("Q", operands.Q, 64),
                maps.keys<T>("K", operands.K, Bc), maps.keys<T>("V", operands.V, Bc), operands.O.as<T>(),
                operands.L.as<float>(), marks...);
}

template <class T, int d>
void launch_a(const attention::Problem& problem, ladder::Operands& operands) {
    launch<T>({"stage04::a::forward", query_tile_ctas(problem, a::Br), a::threads, sizeof(a::Shared<T, d>)},
              a::forward<T, d>, problem, operands, a::Bc(d));
}

template <class T, int d, class Marks = NoMarks>
void launch_b(const attention::Problem& problem, ladder::Operands& operands, Marks marks = {}) {
    launch<T>({"stage04::b::forward", query_tile_ctas(problem, b::Br), b::threads, sizeof(b::Shared<T, d>)},
              b::forward<T, d, Marks>, problem, operands, b::Bc(d), marks);
}

template <class T, int d, class Marks = NoMarks>
void launch_c(const attention::Problem& problem, ladder::Operands& operands, Marks marks = {}) {
    launch<T>({"stage04::c::forward", query_tile_ctas(problem, c::Br), c::threads, sizeof(c::Shared<T, d>)},
              c::forward<T, d, Marks>, problem, operands, c::Bc(d), marks);
}

/// CTAs of 04d: one for each multiprocessor, if there are tiles enough.
inline std::int64_t persistent_ctas(const attention::Problem& problem) {
    static const int multiprocessors = gpu::device().multiprocessors;  // asking takes longer than a launch
    return std::min<std::int64_t>(query_tile_ctas(problem, d::Br(problem.d)), multiprocessors);
}

template <class T, int d, class Marks = NoMarks>
void launch_d(const attention::Problem& problem, ladder::Operands& operands, Marks marks = {}) {
    const Maps maps{problem};
    const bool masked = problem.window_left >= 0 || problem.window_right >= 0;
    const d::Tiles tiles = {attention::ceil_div(problem.Nq, d::Br(d)), problem.B * problem.Hq, masked};
    gpu::launch({"stage04::d::forward", persistent_ctas(problem), d::threads(d), sizeof(d::Shared<T, d>)},
                d::forward<T, d, Marks>, ladder::kernel_problem(problem, operands), tiles,
                maps.queries<T>("Q", operands.Q, 64), maps.keys<T>("K", operands.K, d::Bc(d)),
                maps.keys<T>("V", operands.V, d::Bc(d)), maps.queries<T>("O", operands.O, 64), operands.O.as<T>(),
                operands.L.as<float>(), marks);
}

}  // namespace stage04
