// The kernels before and after the gradients': one block for each query tile.
#pragma once

#include "base/dtype.h"
#include "kernels/attention/hopper_backward.h"
#include "kernels/ptx/math.cuh"
#include "kernels/tile/softmax.cuh"

namespace tilefold::attention {

constexpr int kRowThreads = 256;

// Where a head's query tile keeps its statistics and sums.
__device__ inline std::int64_t query_tile(const BackwardParams& p, int batch, int head,
                                          int tile) {
  return (static_cast<std::int64_t>(batch) * p.heads + head) * p.tiles_of_head + tile;
}

// The number of a document's first query tile within its head.
template <int kRows>
__device__ inline int first_query_tile(const BackwardParams& p, const Extent& at, int document) {
  return p.documents.q == nullptr ? 0 : at.q_begin / kRows + document;
}

struct RowBlock {
  Extent at;
  int batch, head;
  int row;           // first, in the document
  std::int64_t tile;  // of stats, dq_sum and turn
};

template <int kRows>
__device__ inline RowBlock row_block(const BackwardParams& p) {
  const std::int64_t index = blockIdx.x;
  const auto pair = index / p.tiles_q;
  const auto sequence = static_cast<int>(pair / p.heads);
  const int document = p.documents.q ? sequence : 0;
  RowBlock b;
  b.at = extent_of(p.documents, document, p.seq_q, p.seq_k);
  b.batch = p.documents.q ? 0 : sequence;
  b.head = static_cast<int>(pair % p.heads);
  const auto tile = static_cast<int>(index % p.tiles_q);
  b.row = tile * kRows;
  b.tile = query_tile(p, b.batch, b.head, first_query_tile<kRows>(p, b.at, document) + tile);
  return b;
}

template <class Element>
__device__ inline float dot8(const uint4& a, const uint4& b) {
  const auto* x = reinterpret_cast<const Element*>(&a);
  const auto* y = reinterpret_cast<const Element*>(&b);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    sum = fmaf(ptx::widen(x[i]), ptx::widen(y[i]), sum);
  return sum;
}

// stats, and turn = 0; dq_sum = 0 where blocks add in any order.
template <class Element, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    prepare_backward(const __grid_constant__ BackwardParams p) {
  constexpr int kRows = BackwardTiles<kWidth>::kRows;
  constexpr int kLanes = kWidth / 8;  // a row, 16 bytes each
  constexpr int kStep = kRowThreads / kLanes;
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.next_job = 0;
  const RowBlock b = row_block<kRows>(p);
  if (b.row >= b.at.q_count) return;
  const int column = static_cast<int>(threadIdx.x) % kLanes * 8;
  const std::uint16_t* o = p.o_data + b.batch * p.o_at.batch + b.head * p.o_at.head + column;
  const std::uint16_t* d_o =
      p.d_o_data + b.batch * p.d_o_at.batch + b.head * p.d_o_at.head + column;
  const std::int64_t constants =
      (static_cast<std::int64_t>(b.batch) * p.heads + b.head) * p.seq_q + b.at.q_begin;
  float* stats = p.stats + b.tile * (2 * kRows + 4);
  // Whether some row's maximum is too large to fold: then the offsets leave it out.
  bool large = false;
  for (int at = static_cast<int>(threadIdx.x); at < kRows; at += kRowThreads) {
    const int row = b.row + at;
    if (row < b.at.q_count && p.l[constants + row] > 0)
      large |= !(fabsf(p.m[constants + row] * tile::kLog2e) < tile::kFoldLimit);
  }
  const bool huge = __syncthreads_or(large) != 0;
#pragma unroll
  for (int i = 0; i < kRows; i += kStep) {
    const int at = i + static_cast<int>(threadIdx.x) / kLanes;
    const int row = b.row + at;
    const bool inside = row < b.at.q_count;
    float sum = 0;
    if (inside && column < p.d) {
      const std::int64_t r = b.at.q_begin + row;
      sum = dot8<Element>(*reinterpret_cast<const uint4*>(o + r * p.o_at.row),
                          *reinterpret_cast<const uint4*>(d_o + r * p.d_o_at.row));
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (column != 0) continue;
    float offset = -tile::negative_infinity();  // p = 0 beyond the document and where no key is seen
    if (inside && p.l[constants + row] > 0) {
      offset = log2f(p.l[constants + row]);
      if (!huge) offset += p.m[constants + row] * tile::kLog2e;
    }
    stats[at] = offset;
    stats[kRows + at] = sum;
  }
  if (threadIdx.x < 4) stats[2 * kRows + threadIdx.x] = huge ? 1.f : 0.f;
  if (threadIdx.x == 0) p.turn[b.tile] = 0;
  if (p.ordered) return;
  auto* sum = reinterpret_cast<float4*>(p.dq_sum + b.tile * (kRows * kWidth));
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kWidth / 4; i += kRowThreads)
    sum[i] = make_float4(0, 0, 0, 0);
}

// dq = scale dq_sum, or 0 where no key is seen.
template <class Element, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    finish_backward(const __grid_constant__ BackwardParams p) {
  constexpr int kRows = BackwardTiles<kWidth>::kRows;
  const RowBlock b = row_block<kRows>(p);
  if (b.row >= b.at.q_count) return;
  const Range seen = keys_seen(b.at, p.window, b.row, kRows);
  const bool any = seen.first <= seen.last;
  const auto* sum = reinterpret_cast<const float4*>(p.dq_sum + b.tile * (kRows * kWidth));
  const int group = static_cast<int>(threadIdx.x) / tile::kWarpgroup;
  const int half_row = kRows > 64 ? 64 * group : 0, half_column = kRows > 64 ? 0 : 64 * group;
  std::uint16_t* dq = p.dq_data + b.batch * p.dq_at.batch + b.head * p.dq_at.head +
                      b.at.q_begin * p.dq_at.row;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float4 x = make_float4(0, 0, 0, 0);
    if (any) x = sum[(group * 8 + i) * tile::kWarpgroup + tile::group_thread()];
    const int row = b.row + half_row + tile::first_row();
    const int column = half_column + 8 * i + tile::first_column();
    if (column >= p.d) continue;
    if (row < b.at.q_count)
      *reinterpret_cast<std::uint32_t*>(dq + row * p.dq_at.row + column) =
          ptx::pack<Element>(x.x * p.scale, x.y * p.scale);
    if (row + 8 < b.at.q_count)
      *reinterpret_cast<std::uint32_t*>(dq + (row + 8) * p.dq_at.row + column) =
          ptx::pack<Element>(x.z * p.scale, x.w * p.scale);
  }
}

}  // namespace tilefold::attention
