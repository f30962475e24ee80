// The streaming softmax: a row's maximum and sum of exponentials, folded over tiles of scores.
//
//   m' = max(m, max_j t_j)   p_j = 2^((t_j - m') c)   l' = l 2^((m - m') c) + sum_j p_j
//
// t are scores before the factor c = (scale) log2 e, which is above 0. A row that saw no key yet
// has m = -inf, l = 0. (t - m) c as one multiply-add with m c rounded is off by |m c| 2^-24, the
// same for all of a row's keys; beyond kFoldLimit the subtraction comes first, exact where it
// matters. Milakov, Gimelshein (2018), arXiv 1805.02867.
#pragma once

#include <cmath>

#include "kernels/tile/fragment.cuh"

namespace tilefold::tile {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kFoldLimit = 256;  // 2^8: off by 2^-16 at most

__device__ __forceinline__ float negative_infinity() { return __int_as_float(0xff800000); }

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// tanh with an absolute error below 2e-7: the exponential form, near zero the series.
__device__ __forceinline__ float tanh_accurate(float y) {
  const float y2 = y * y;
  const float series =
      y * (1 + y2 * (-1.f / 3 + y2 * (2.f / 15 + y2 * (-17.f / 315 + y2 * (62.f / 2835)))));
  const float form = 1 - 2 * ptx::reciprocal(1 + ptx::exp2(2 * kLog2e * fabsf(y)));
  return y2 < 0.0625f ? series : copysignf(form, y);
}

// The two rows of a thread; l is this thread's share until total().
struct RowFold {
  float m[2] = {negative_infinity(), negative_infinity()};
  float l[2] = {0, 0};

  // Turns scores into p; returns in `keep` what the rows' earlier sums must be scaled by.
  template <int kColumns>
  __device__ __forceinline__ void fold(Fragment<kColumns>& t, float c, float (&keep)[2]) {
    using F = Fragment<kColumns>;
    float top[4] = {t.x[0], t.x[1], t.x[2], t.x[3]};  // two chains a row
#pragma unroll
    for (int r = 4; r < F::kCount; ++r) top[r % 4] = fmaxf(top[r % 4], t.x[r]);
    float shift[2], folded[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float before = m[i];
      m[i] = fmaxf(before, quad_max(fmaxf(top[2 * i], top[2 * i + 1])));
      shift[i] = m[i] == negative_infinity() ? 0 : m[i];
      folded[i] = shift[i] * c;
      keep[i] = ptx::exp2((before - shift[i]) * c);
      l[i] *= keep[i];
    }
    const bool small = fmaxf(fabsf(folded[0]), fabsf(folded[1])) < kFoldLimit;
    float sum[4] = {0, 0, 0, 0};
    if (__all_sync(0xffffffffu, small)) {
#pragma unroll
      for (int r = 0; r < F::kCount; ++r) {
        t.x[r] = ptx::exp2(fmaf(t.x[r], c, -folded[F::is_lower(r)]));
        sum[r % 4] += t.x[r];
      }
    } else {
#pragma unroll
      for (int r = 0; r < F::kCount; ++r) {
        t.x[r] = ptx::exp2((t.x[r] - shift[F::is_lower(r)]) * c);
        sum[r % 4] += t.x[r];
      }
    }
    l[0] += sum[0] + sum[1];
    l[1] += sum[2] + sum[3];
  }

  __device__ __forceinline__ void total() {
    l[0] = quad_sum(l[0]);
    l[1] = quad_sum(l[1]);
  }
};

constexpr float kSlack = 8;  // of exponents of 2

// RowFold with exponents relative to a base b that follows the maximum only when that is more than
// kSlack above it: p_j = 2^((t_j - b) c) is at most 2^kSlack, and what was summed before is rarely
// scaled. l is relative to the base.
struct LazyRowFold {
  float m[2] = {negative_infinity(), negative_infinity()};
  float base[2] = {negative_infinity(), negative_infinity()};
  float l[2] = {0, 0};
  bool small = true;  // base c is, for the whole warp

  // Turns scores into p. True, for the whole warp, when the rows' earlier sums must be scaled by
  // `keep`, which is not written otherwise.
  template <int kColumns>
  __device__ __forceinline__ bool fold(Fragment<kColumns>& t, float c, float (&keep)[2]) {
    using F = Fragment<kColumns>;
    float top[4] = {t.x[0], t.x[1], t.x[2], t.x[3]};  // two chains a row
#pragma unroll
    for (int r = 4; r < F::kCount; ++r) top[r % 4] = fmaxf(top[r % 4], t.x[r]);
    bool rises[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      m[i] = fmaxf(m[i], quad_max(fmaxf(top[2 * i], top[2 * i + 1])));
      rises[i] = (m[i] - base[i]) * c > kSlack;  // false where both are -inf
    }
    const bool scale = __any_sync(0xffffffffu, rises[0] || rises[1]);
    if (scale) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        keep[i] = rises[i] ? ptx::exp2((base[i] - m[i]) * c) : 1;
        if (rises[i]) base[i] = m[i];
        l[i] *= keep[i];
      }
      const float largest = fmaxf(fabsf(shift(0)), fabsf(shift(1)));
      small = __all_sync(0xffffffffu, largest * c < kFoldLimit);
    }
    float sum[4] = {0, 0, 0, 0};
    if (small) {
      const float folded[2] = {shift(0) * c, shift(1) * c};
#pragma unroll
      for (int r = 0; r < F::kCount; ++r) {
        t.x[r] = ptx::exp2(fmaf(t.x[r], c, -folded[F::is_lower(r)]));
        sum[r % 4] += t.x[r];
      }
    } else {
#pragma unroll
      for (int r = 0; r < F::kCount; ++r) {
        t.x[r] = ptx::exp2((t.x[r] - shift(F::is_lower(r))) * c);
        sum[r % 4] += t.x[r];
      }
    }
    l[0] += sum[0] + sum[1];
    l[1] += sum[2] + sum[3];
    return scale;
  }

  // The base, or 0 while no key was seen.
  __device__ __forceinline__ float shift(int i) const {
    return base[i] == negative_infinity() ? 0 : base[i];
  }

  __device__ __forceinline__ void total() {
    l[0] = quad_sum(l[0]);
    l[1] = quad_sum(l[1]);
  }

  // After total(): the sum relative to the maximum.
  __device__ __forceinline__ float sum(int i, float c) const {
    return l[i] > 0 ? l[i] * ptx::exp2((base[i] - m[i]) * c) : 0;
  }
};

}  // namespace tilefold::tile
