// The problem of the labs that multiply, and its answer by loops.
#pragma once

#include <vector>

#include "docs/labs/lab.h"

/// D (m x n) = A (m x k) B (k x n). B comes as its transpose, n x k. Small integers: exact in bf16, and so are their
/// products and sums in fp32.
struct Product {
    int m, n, k;
    std::vector<float> a, b;
    gpu::Buffer a_gmem{"A", a.size() * 4}, b_gmem{"B", b.size() * 4}, d_gmem{"D", std::size_t(m*n) * 4};

    Product(int m, int n, int k) : m(m), n(n), k(k), a(m * k), b(n * k) {
        for (int i = 0; i < m * k; ++i) a[i] = static_cast<float>(i * 37 % 19 - 9);
        for (int i = 0; i < n * k; ++i) b[i] = static_cast<float>(i * 53 % 13 - 6);
        a_gmem.write(a.data(), a_gmem.bytes());
        b_gmem.write(b.data(), b_gmem.bytes());
    }

    /// Prints a few elements of D; true if all are right.
    bool is_right() const {
        std::vector<float> d(m * n);
        d_gmem.read(d.data(), d_gmem.bytes());
        std::printf("D, rows 0, %d, ... and columns 0, 9, ... 63\n", m / 8 + 1);
        bool right = true;
        for (int i = 0; i < m; ++i) {
            for (int j = 0; j < n; ++j) {
                float sum = 0;
                for (int l = 0; l < k; ++l) sum += a[i * k + l] * b[j * k + l];
                right = right && d[i * n + j] == sum;
                if (i % (m / 8 + 1) == 0 && j % 9 == 0) std::printf("%7.0f", d[i * n + j]);
            }
            if (i % (m / 8 + 1) == 0) std::puts("");
        }
        return right;
    }
};
