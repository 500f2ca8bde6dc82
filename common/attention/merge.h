// The merge rule: what is known of two sets of keys, each relative to its own maximum, becomes what is known of both.
//
//   m = max(m_A, m_B)    alpha = exp(m_A - m), beta = exp(m_B - m)    l = alpha l_A + beta l_B    u = alpha u_A + beta u_B
//
// It is associative and commutative within rounding, and the empty state (-inf, 0) is its identity: so keys may be taken one by
// one, in blocks, by lanes, warps or CTAs, in any order and as any tree. One key of score s is the state (s, 1) with u = V. The
// base of the exponentials is the caller's, one base for all that is merged; an O with its log-sum-exp L is the state (L, 1) in
// base e with u = O.
#pragma once

#include "common/gpu/math.h"

namespace attention {

/// m: the maximum of a set of scores. l: the sum of their weights relative to m. No keys: (-inf, 0).
template <class Real>
struct State {
    Real m = -gpu::infinity, l = 0;
    /// No keys, or none with a score above -inf. A NaN score makes l NaN: never empty.
    GPU_HOST_DEVICE bool empty() const { return l == 0; }
};

template <class Real>
struct Merged {
    State<Real> state;
    Real alpha, beta;  // factors of A's and B's l and u
    bool takes_A, takes_B;

    /// The merged u, one column of it. That of an empty state is never looked at, whatever it holds.
    GPU_HOST_DEVICE Real u(Real u_A, Real u_B) const {
        if (!takes_B) return takes_A ? alpha * u_A : 0;
        return takes_A ? alpha * u_A + beta * u_B : beta * u_B;
    }
};

/// 2^x, the kernels' exponential: one of the rescales that are counted.
struct Base2 {
    GPU_HOST_DEVICE float operator()(float x) const {
        gpu::count_rescale();
        return gpu::ex2_approx_ftz(x);
    }
};

/// A and B as one. `power` is the exponential of both states' base, such as Base2{}.
template <class Real, class Power>
GPU_HOST_DEVICE Merged<Real> merge(const State<Real>& A, const State<Real>& B, Power power) {
    const Real m = fmax(A.m, B.m);
    const Real base = m == -gpu::infinity ? 0 : m;  // two empty states: never -inf - (-inf)
    const Real alpha = power(A.m - base), beta = power(B.m - base);
    return {{m, alpha * A.l + beta * B.l}, alpha, beta, !A.empty(), !B.empty()};
}

}  // namespace attention
