// Partial results of parts of the keys, put together in a fixed order:
//
//   m = max_p m_p     l = sum_p exp(m_p - m) l_p     o = sum_p exp(m_p - m) O_p / l
//
// A row is one warp's, or all eight of the block's where there are many parts: warp w then takes
// parts w, w + 8, ..., and the eight sums are added in order.
#pragma once

#include "kernels/attention/params.cuh"
#include "kernels/ptx/grid_order.cuh"
#include "kernels/tile/launch.cuh"
#include "kernels/tile/softmax.cuh"

namespace tilefold::attention {

constexpr int kCombineWarps = 8, kFewParts = 8, kCombineColumns = 8;  // columns of a lane: d 256
constexpr int kCombineAhead = 4;  // parts of a warp that are loaded before m is known

template <class Element>
__global__ void __launch_bounds__(32 * kCombineWarps)
    combine_kernel(const __grid_constant__ Params p, const __grid_constant__ Partials parts) {
  extern __shared__ uint4 shared_memory[];
  auto* const sums = reinterpret_cast<float*>(shared_memory);  // [8, 256]
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const bool together = parts.parts > kFewParts;
  const int step = together ? kCombineWarps : 1, first = together ? warp : 0;
  const std::int64_t row =
      together ? blockIdx.x : static_cast<std::int64_t>(blockIdx.x) * kCombineWarps + warp;
  const std::int64_t flat = row % p.seq_q, pair = row / p.seq_q;
  // Rows after the last document become those of a row without keys.
  const bool live =
      row < parts.rows &&
      (!p.documents.q || flat < offset_at(p.documents.q, p.documents.wide_q, p.documents.count));

  ptx::let_next_start();
  ptx::wait_for_last();
  float m = tile::negative_infinity(), l = 0, o[kCombineColumns] = {};
  float ahead[kCombineAhead][kCombineColumns] = {};
  const auto fetch = [&](int part, float(&to)[kCombineColumns]) {
    const float* from = parts.o + (part * parts.rows + row) * p.d;
#pragma unroll
    for (int c = 0; c < kCombineColumns; ++c)
      if (lane + 32 * c < p.d) to[c] = from[lane + 32 * c];
  };
  if (live) {
#pragma unroll
    for (int a = 0; a < kCombineAhead; ++a)
      if (first + a * step < parts.parts) fetch(first + a * step, ahead[a]);
    // A lane's first part, for most all of them, in the same round of loads.
    const bool mine = lane < parts.parts;
    const float m_first = mine ? parts.m[lane * parts.rows + row] : tile::negative_infinity();
    const float l_first = mine ? parts.l[lane * parts.rows + row] : 0;
    m = m_first;
    for (int i = lane + 32; i < parts.parts; i += 32) m = fmaxf(m, parts.m[i * parts.rows + row]);
    m = warp_max(m);
    const float shift = m == tile::negative_infinity() ? 0 : m;
    l = expf(m_first - shift) * l_first;
    for (int i = lane + 32; i < parts.parts; i += 32)
      l += expf(parts.m[i * parts.rows + row] - shift) * parts.l[i * parts.rows + row];
    l = warp_sum(l);
    const auto add = [&](int part, const float(&from)[kCombineColumns]) {
      const float weight = expf(parts.m[part * parts.rows + row] - shift);
#pragma unroll
      for (int c = 0; c < kCombineColumns; ++c) o[c] = fmaf(weight, from[c], o[c]);
    };
#pragma unroll
    for (int a = 0; a < kCombineAhead; ++a)
      if (first + a * step < parts.parts) add(first + a * step, ahead[a]);
#pragma unroll 4
    for (int i = first + kCombineAhead * step; i < parts.parts; i += step) {
      float from[kCombineColumns] = {};
      fetch(i, from);
      add(i, from);
    }
  }
  if (together) {
#pragma unroll
    for (int c = 0; c < kCombineColumns; ++c) sums[warp * 256 + lane + 32 * c] = o[c];
    __syncthreads();
    if (warp > 0) return;
    for (int w = 1; w < kCombineWarps; ++w)
#pragma unroll
      for (int c = 0; c < kCombineColumns; ++c) o[c] += sums[w * 256 + lane + 32 * c];
  }
  if (row >= parts.rows) return;
  auto* const out =
      p.o.at<Element>(static_cast<int>(pair / p.heads), flat, static_cast<int>(pair % p.heads));
#pragma unroll
  for (int c = 0; c < kCombineColumns; ++c)
    if (lane + 32 * c < p.d) narrow(out + lane + 32 * c, l > 0 ? o[c] / l : 0);
  if (lane == 0) {
    p.m[row] = m;
    p.l[row] = l;
  }
}

template <class Element>
void launch_combine(const Params& p, const Partials& parts, CUstream_st* stream) {
  const std::int64_t rows_a_block = parts.parts > kFewParts ? 1 : kCombineWarps;
  const std::int64_t blocks = (parts.rows + rows_a_block - 1) / rows_a_block;
  if (blocks == 0) return;
  tile::launch(combine_kernel<Element>,
               {.blocks = blocks,
                .threads = 32 * kCombineWarps,
                .shared_bytes = kCombineWarps * 256 * 4,
                .early = true},
               stream, p, parts);
}

}  // namespace tilefold::attention
