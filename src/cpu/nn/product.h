// The three products of a linear layer over float32 or float64 matrices, split into fixed blocks
// that run OpenBLAS with one thread each: bits depend on the shape alone. Rows may be strided.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/parallel.h"
#include "cpu/blas.h"

namespace tilefold::cpu {

// A row-major matrix; ld: elements from one row to the next.
template <class A>
struct Matrix {
  A* data = nullptr;
  std::int64_t ld = 0;
  Matrix rows_from(std::int64_t row) const { return {data + row * ld, ld}; }
};

// Tokens a block of y = x W^T or dx = dy W works on.
std::int64_t product_block(std::int64_t tokens);

// dweight[out, in] += dy[tokens, out]^T x[tokens, in]. runs: [weight_gradient_runs(...), out, in]
// where that is more than 1 (contract/linear.h).
template <class A>
void add_weight_gradient(ThreadPool& pool, std::int64_t tokens, std::int64_t in, std::int64_t out,
                         Matrix<const A> dy, Matrix<const A> x, A* runs, A* dweight);

// Rows [rows, width] in the other type. narrow() is for one block; widen() splits.
template <class T>
void widen(ThreadPool& pool, std::int64_t rows, std::int64_t width, Matrix<const T> from,
           float* to);
template <class T>
void narrow(std::int64_t rows, std::int64_t width, Matrix<const float> from, Matrix<T> to);

// Rows as a product takes them: themselves, or widened into `place`, [rows, width].
template <class T>
Matrix<const accumulator_t<T>> operand(ThreadPool& pool, std::int64_t rows, std::int64_t width,
                                       Matrix<const T> from, accumulator_t<T>* place) {
  if constexpr (std::is_same_v<T, accumulator_t<T>>) {
    return from;
  } else {
    widen(pool, rows, width, from, place);
    return {place, width};
  }
}

}  // namespace tilefold::cpu
