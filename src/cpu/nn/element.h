// What the ops of this folder share: from a dtype to a type, and fixed blocks of rows.
//
// Loops that dominate carry [[gnu::target_clones]]: the compiler makes one version for AVX-512, one
// for AVX2 and one for any x86-64, and the loader picks. They are function templates in an unnamed
// namespace, over plain pointers, and get a range of rows. Sums use `omp simd reduction` (compiled
// with -fopenmp-simd: no runtime), so their order depends on the instruction set, never on threads.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"
#include "base/float_types.h"
#include "base/parallel.h"
#include "contract/workspace.h"

namespace tilefold::cpu {

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

// An element as the type that is computed in, and back with one rounding: base/dtype.h without
// branches, since a loop with branches or with structs of 16 bits is not vectorized.
[[gnu::always_inline]] inline float load(const float& x) { return x; }
[[gnu::always_inline]] inline double load(const double& x) { return x; }
[[gnu::always_inline]] inline float load(const bf16& x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
[[gnu::always_inline]] inline float load(const f16& x) {
  const std::uint32_t sign = (x.bits & 0x8000u) << 16, rest = (x.bits & 0x7fffu) << 13;
  // As a float32 with 112 less in the exponent, which the product corrects, subnormals too.
  const float scaled = std::bit_cast<float>(rest) * 0x1p112f;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t magnitude = rest >= 0x0f800000u ? rest | 0x7f800000u : finite;
  return std::bit_cast<float>(sign | magnitude);
}

[[gnu::always_inline]] inline void store(float& to, float x) { to = x; }
[[gnu::always_inline]] inline void store(double& to, double x) { to = x; }
[[gnu::always_inline]] inline void store(bf16& to, float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (u >> 16) | 0x40u;
  to.bits = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
[[gnu::always_inline]] inline void store(f16& to, float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x), a = u & 0x7fffffffu;
  const std::uint32_t normal = (a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13;
  // Below 2^-14: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded to even.
  const float shifted = std::bit_cast<float>(a) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
  std::uint32_t h = a < 0x38800000u ? subnormal : normal;
  h = a >= 0x477ff000u ? 0x7c00u : h;
  h = a > 0x7f800000u ? 0x7e00u : h;
  to.bits = static_cast<std::uint16_t>((u >> 16 & 0x8000u) | h);
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
