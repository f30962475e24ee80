// What stands between a product and the exponential, where rows are queries.
#pragma once

#include "kernels/attention/hopper_query_jobs.cuh"
#include "kernels/tile/softmax.cuh"

namespace tilefold::attention {

// Hides what the mask hides in key tile n; the rows of this warpgroup start at `row`.
template <int kKeys>
__device__ __forceinline__ void mask_scores(tile::Fragment<kKeys>& s, const QueryJob& job,
                                            const Range& whole, int row, int n) {
  const Diagonal& d = job.diagonal;
  const int i = row + tile::first_row() + d.off - n * kKeys;  // the diagonal's column
  const int end = job.at.k_count - 1 - n * kKeys;
  if (n > whole.last) tile::hide_after(s, min(i + d.right, end), min(i + 8 + d.right, end));
  if (n < whole.first) tile::hide_before(s, i - d.left, i + 8 - d.left);
}

// Scores in raw units become capped scores in natural units.
template <int kKeys>
__device__ __forceinline__ void cap_scores(tile::Fragment<kKeys>& s, float scale, float softcap) {
  const float inner = scale * ptx::reciprocal(softcap);
#pragma unroll
  for (int r = 0; r < tile::Fragment<kKeys>::kCount; ++r)
    s.x[r] = softcap * tile::tanh_accurate(s.x[r] * inner);
}

}  // namespace tilefold::attention
