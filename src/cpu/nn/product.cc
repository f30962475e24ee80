#include "cpu/nn/product.h"

#include <algorithm>

#include "cpu/nn/element.h"

namespace tilefold::cpu {
namespace {

// Rows of dW a block works on.
constexpr std::int64_t kGradientRows = 32;

}  // namespace

std::int64_t product_block(std::int64_t tokens) {
  // Blocks of 64 to 256 tokens, at least eight of them where there are enough tokens.
  return std::clamp<std::int64_t>(ceil_div(ceil_div(tokens, 8), 16) * 16, 64, 256);
}

template <class A>
void add_weight_gradient(ThreadPool& pool, std::int64_t tokens, std::int64_t in, std::int64_t out,
                         Matrix<const A> dy, Matrix<const A> x, A* dweight) {
  for_blocks(pool, out, kGradientRows, [&](std::int64_t begin, std::int64_t end) {
    gemm(Trans::yes, Trans::no, end - begin, in, tokens, A(1), dy.data + begin, dy.ld, x.data, x.ld,
         A(1), dweight + begin * in, in);
  });
}

template <class T, class A>
void widen(ThreadPool& pool, std::int64_t rows, std::int64_t width, Matrix<const T> from, A* to) {
  for_blocks(pool, rows, rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* source = from.data + row * from.ld;
      A* target = to + row * width;
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) target[c] = static_cast<A>(source[c]);
    }
  });
}

template void add_weight_gradient(ThreadPool&, std::int64_t, std::int64_t, std::int64_t,
                                  Matrix<const float>, Matrix<const float>, float*);
template void add_weight_gradient(ThreadPool&, std::int64_t, std::int64_t, std::int64_t,
                                  Matrix<const double>, Matrix<const double>, double*);
template void widen(ThreadPool&, std::int64_t, std::int64_t, Matrix<const bf16>, float*);
template void widen(ThreadPool&, std::int64_t, std::int64_t, Matrix<const f16>, float*);

}  // namespace tilefold::cpu
