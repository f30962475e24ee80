#include "cpu/nn/product.h"

#include <algorithm>

#include "contract/linear.h"
#include "cpu/nn/element.h"

namespace tilefold::cpu {
namespace {

template <class T>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void widen_rows(
    std::int64_t rows, std::int64_t width, Matrix<const T> from, float* to) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* source = from.data + row * from.ld;
    float* target = to + row * width;
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) target[c] = load(source[c]);
  }
}

template <class T>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void narrow_rows(
    std::int64_t rows, std::int64_t width, Matrix<const float> from, Matrix<T> to) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* source = from.data + row * from.ld;
    T* target = to.data + row * to.ld;
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) store(target[c], source[c]);
  }
}

// total[begin, end) += the runs' sums, in order; step: elements from one run to the next. The first
// run's place is where they are added up.
template <class A>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void add_runs(
    std::int64_t begin, std::int64_t end, std::int64_t runs, std::int64_t step, A* sums, A* total) {
  for (std::int64_t run = 1; run < runs; ++run) {
    const A* more = sums + run * step;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) sums[i] += more[i];
  }
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) total[i] += sums[i];
}

}  // namespace

std::int64_t product_block(std::int64_t tokens) {
  // The weight is packed anew for each block, which 256 tokens make small (1 part in 10); fewer
  // where there would be less than four blocks.
  return std::clamp<std::int64_t>(ceil_div(ceil_div(tokens, 4), 16) * 16, 64, 256);
}

template <class A>
void add_weight_gradient(ThreadPool& pool, std::int64_t tokens, std::int64_t in, std::int64_t out,
                         Matrix<const A> dy, Matrix<const A> x, A* runs, A* dweight) {
  const std::int64_t count = weight_gradient_runs(tokens, in, out);
  const std::int64_t run = ceil_div(tokens, count);  // none is empty: runs are longer than many
  // x is packed anew for each block of rows: all rows at once where runs give enough blocks.
  const std::int64_t rows = count > 1 ? 512 : 128, row_blocks = ceil_div(out, rows);
  pool.parallel_for(count * row_blocks, [&](std::int64_t block, int) {
    const std::int64_t first = block / row_blocks * run;
    const std::int64_t length = std::min(tokens - first, run);
    const std::int64_t row = block % row_blocks * rows;
    A* to = count > 1 ? runs + block / row_blocks * out * in : dweight;
    gemm(Trans::yes, Trans::no, std::min(rows, out - row), in, length, A(1),
         dy.data + first * dy.ld + row, dy.ld, x.data + first * x.ld, x.ld, count > 1 ? A(0) : A(1),
         to + row * in, in);
  });
  if (count == 1) return;
  for_blocks(pool, out * in, rows_per_block(count), [&](std::int64_t begin, std::int64_t end) {
    add_runs(begin, end, count, out * in, runs, dweight);
  });
}

template <class T>
void widen(ThreadPool& pool, std::int64_t rows, std::int64_t width, Matrix<const T> from,
           float* to) {
  for_blocks(pool, rows, rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
    widen_rows(end - begin, width, from.rows_from(begin), to + begin * width);
  });
}

template <class T>
void narrow(std::int64_t rows, std::int64_t width, Matrix<const float> from, Matrix<T> to) {
  narrow_rows(rows, width, from, to);
}

template void add_weight_gradient(ThreadPool&, std::int64_t, std::int64_t, std::int64_t,
                                  Matrix<const float>, Matrix<const float>, float*, float*);
template void add_weight_gradient(ThreadPool&, std::int64_t, std::int64_t, std::int64_t,
                                  Matrix<const double>, Matrix<const double>, double*, double*);
template void widen(ThreadPool&, std::int64_t, std::int64_t, Matrix<const bf16>, float*);
template void widen(ThreadPool&, std::int64_t, std::int64_t, Matrix<const f16>, float*);
template void narrow(std::int64_t, std::int64_t, Matrix<const float>, Matrix<bf16>);
template void narrow(std::int64_t, std::int64_t, Matrix<const float>, Matrix<f16>);

}  // namespace tilefold::cpu
