// D of each query row, dO . O, a warp a row.
#pragma once

#include "kernels/attention/params.cuh"
#include "kernels/tile/launch.cuh"

namespace tilefold::attention {

constexpr int kSumWarps = 8;

template <class Element>
__global__ void __launch_bounds__(32 * kSumWarps)
    row_sums_kernel(const __grid_constant__ Params p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kSumWarps + threadIdx.x / 32;
  if (row >= static_cast<std::int64_t>(p.batch) * p.heads * p.seq_q) return;
  const std::int64_t flat = row % p.seq_q, pair = row / p.seq_q;
  if (p.documents.q && flat >= offset_at(p.documents.q, p.documents.wide_q, p.documents.count))
    return;
  const auto batch = static_cast<int>(pair / p.heads), head = static_cast<int>(pair % p.heads);
  const Element* o = p.o.at<const Element>(batch, flat, head);
  const Element* d_o = p.d_o.at<const Element>(batch, flat, head);
  float sum = 0;
#pragma unroll 8
  for (int c = lane; c < p.d; c += 32) sum = fmaf(widened(d_o[c]), widened(o[c]), sum);
  sum = warp_sum(sum);
  if (lane == 0) p.sums[row] = sum;
}

template <class Element>
void launch_sums(const Params& p, CUstream_st* stream) {
  const std::int64_t rows = static_cast<std::int64_t>(p.batch) * p.heads * p.seq_q;
  if (rows == 0) return;
  tile::launch(row_sums_kernel<Element>, {(rows + kSumWarps - 1) / kSumWarps, 32 * kSumWarps},
               stream, p);
}

}  // namespace tilefold::attention
