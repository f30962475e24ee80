// The mathematics of one step of the backward kernels that go over keys: scores of 64 keys a
// warpgroup by kRows queries, transposed.
#pragma once

#include "kernels/attention/hopper_key_jobs.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/tile/softmax.cuh"

namespace tilefold::attention {

// Of a query tile, as prepare_backward leaves them.
template <int kRows>
struct StepStats {
  float offset[kRows];  // m log2 e + log2 l; +inf where p is zero
  float d[kRows];
  float huge[4];  // [0] != 0: some |m log2 e| is beyond kFoldLimit, and offset is log2 l
};

// What one step knows of its scores: Sᵀ in raw units becomes P, dPᵀ becomes dS.
template <int kRows>
struct Step {
  const BackwardParams& p;
  const KeyJob& job;
  const StepStats<kRows>& stats;
  int head, query_tile;
  int key;  // first of the warpgroup, in the document
  using F = tile::Fragment<kRows>;

  // Both of a thread's column pair, for columns 8 g and on.
  __device__ __forceinline__ float2 at(const float* row, int g) const {
    return reinterpret_cast<const float2*>(row + tile::first_column())[4 * g];
  }

  // The maximum of a query, by its column from the thread's first; 0 where no key is seen.
  __device__ __forceinline__ float maximum(int column) const {
    const float* m = p.m + (static_cast<std::int64_t>(job.batch) * p.heads + head) * p.seq_q +
                     job.at.q_begin + query_tile * kRows;
    const float top =
        m[min(tile::first_column() + column, job.at.q_count - query_tile * kRows - 1)];
    return top == tile::negative_infinity() ? 0 : top;
  }

  __device__ __forceinline__ bool needs_mask() const {
    return query_tile < job.whole.first || query_tile > job.whole.last;
  }

  __device__ __forceinline__ void mask(F& s) const {
    const Diagonal& d = job.diagonal;
    const int j = key + tile::first_row();
    const int i = j - d.off - query_tile * kRows;  // the diagonal's column
    if (query_tile < job.whole.first) tile::hide_before(s, i - d.right, i + 8 - d.right);
    if (query_tile > job.whole.last) {
      const int none = -1, k_count = job.at.k_count;  // for keys beyond the document
      tile::hide_after(s, j < k_count ? i + d.left : none, j + 8 < k_count ? i + 8 + d.left : none);
    }
  }

  // Scores times `unit` are natural.
  __device__ __forceinline__ void exponentials(F& s, float unit, bool huge) const {
    if (!huge) {
      const float c = unit * tile::kLog2e;
#pragma unroll
      for (int g = 0; g < kRows / 8; ++g) {
        const float2 offset = at(stats.offset, g);
#pragma unroll
        for (int r = 4 * g; r < 4 * g + 4; ++r)
          s.x[r] = ptx::exp2(fmaf(s.x[r], c, r % 2 ? -offset.y : -offset.x));
      }
      return;
    }
    // The maximum is subtracted first; the offsets are log2 l alone, +inf where p is zero.
#pragma unroll
    for (int g = 0; g < kRows / 8; ++g) {
      const float2 offset = at(stats.offset, g);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float shift = maximum(8 * g + odd);
#pragma unroll
        for (int r = 4 * g + odd; r < 4 * g + 4; r += 2)
          s.x[r] =
              ptx::exp2(fmaf(s.x[r] * unit - shift, tile::kLog2e, odd ? -offset.y : -offset.x));
      }
    }
  }

  // Scores in raw units become capped scores in natural units.
  __device__ __forceinline__ void cap(F& s) const {
    const float inner = p.scale * ptx::reciprocal(p.softcap);
#pragma unroll
    for (int r = 0; r < F::kCount; ++r) s.x[r] = p.softcap * tile::tanh_accurate(s.x[r] * inner);
  }

  __device__ __forceinline__ void gradients(const F& probabilities, F& dp) const {
#pragma unroll
    for (int g = 0; g < kRows / 8; ++g) {
      const float2 d = at(stats.d, g);
#pragma unroll
      for (int r = 4 * g; r < 4 * g + 4; ++r)
        dp.x[r] = probabilities.x[r] * (dp.x[r] - (r % 2 ? d.y : d.x));
    }
  }

  // dS of capped scores t: times 1 - (t / cap)^2, with t from its probability.
  __device__ __forceinline__ void slopes(const F& probabilities, F& ds, bool huge) const {
    const float base = ptx::reciprocal(p.softcap), unit = tile::kLn2 * base;
#pragma unroll
    for (int g = 0; g < kRows / 8; ++g) {
      const float2 offset = at(stats.offset, g);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float shift = huge ? maximum(8 * g + odd) * base : 0.f;
#pragma unroll
        for (int r = 4 * g + odd; r < 4 * g + 4; r += 2) {
          const float t =
              fmaf(ptx::log2(probabilities.x[r]) + (odd ? offset.y : offset.x), unit, shift);
          ds.x[r] = probabilities.x[r] > 0 ? ds.x[r] * (1 - t * t) : 0.f;
        }
      }
    }
  }
};

}  // namespace tilefold::attention
