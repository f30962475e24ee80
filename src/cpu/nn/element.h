// What the ops of this folder share: from a dtype to a type, and fixed blocks of rows.
//
// Loops that dominate carry [[gnu::target_clones]]: the compiler makes one version for AVX-512, one
// for AVX2 and one for any x86-64, and the loader picks. They are function templates in an unnamed
// namespace, over plain pointers, and get a range of rows. Sums use `omp simd reduction` (compiled
// with -fopenmp-simd: no runtime), so their order depends on the instruction set, never on threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"
#include "base/parallel.h"
#include "contract/workspace.h"

namespace tilefold::cpu {

template <class T>
struct Type {
  using type = T;
};

// body(Type<T>{}) with T the element type of a floating dtype.
template <class Body>
void for_float_dtype(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body(Type<float>{});
    case DType::f64:
      return body(Type<double>{});
    case DType::bf16:
      return body(Type<bf16>{});
    case DType::f16:
      return body(Type<f16>{});
    default:
      expect(false, "an integer dtype where a floating one was checked for");
  }
}

// body(Type<R>{}) with R what may stand beside elements T: T itself or float32 (the residual
// stream, a linear layer's output).
template <class T, class Body>
void for_wider_dtype(DType dtype, Body&& body) {
  if (dtype == dtype_of<T>()) return body(Type<T>{});
  if constexpr (!std::is_same_v<T, float> && !std::is_same_v<T, double>) {
    expect(dtype == DType::f32, "a dtype that is neither the model's nor float32");
    return body(Type<float>{});
  }
  expect(false, "a dtype other than the model's");
}

// Rows a block: about 64 KiB of float32, so that a block's operands stay in the second-level cache
// and a block is long beside the microseconds it takes to hand one out.
constexpr std::int64_t rows_per_block(std::int64_t width) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(width, 1));
}

// body(begin, end) over [0, count) in blocks of `size`.
template <class Body>
void for_blocks(ThreadPool& pool, std::int64_t count, std::int64_t size, Body&& body) {
  pool.parallel_for(ceil_div(count, size), [&](std::int64_t block, int) {
    body(block * size, std::min(count, (block + 1) * size));
  });
}

}  // namespace tilefold::cpu
