// The kernel before the gradients': one block for each query tile.
#pragma once

#include "base/dtype.h"
#include "kernels/attention/hopper_backward.h"
#include "kernels/ptx/grid_order.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/tile/softmax.cuh"

namespace tilefold::attention {

constexpr int kRowThreads = 256;

// Whether the kernels of a backward pass are launched early, so that one begins while the one
// before ends. H200: 4 heads, n 256 to 1024 3 to 5% of the time; 16,384 tokens of width 2048 within
// 1% at n 512 and 1k, but -1% from 2k on.
inline bool begins_early(const BackwardParams& p, int blocks) {
  constexpr std::int64_t kFewJobs = 4;  // a block
  return std::int64_t{p.pairs} * p.tiles_k <= kFewJobs * blocks;
}

// Where a head's query tile keeps its statistics and sums.
__device__ inline std::uint32_t query_tile(const BackwardParams& p, int batch, int head, int tile) {
  return static_cast<std::uint32_t>(batch * p.heads + head) * p.tiles_of_head +
         static_cast<std::uint32_t>(tile);
}

// The number of a document's first query tile within its head.
template <int kRows>
__device__ inline int first_query_tile(const BackwardParams& p, const Extent& at, int document) {
  return p.documents.q == nullptr ? 0 : at.q_begin / kRows + document;
}

struct RowBlock {
  Extent at;
  int batch, head;
  int row;            // first, in the document
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
  for (int i = 0; i < 8; ++i) sum = fmaf(ptx::widen(x[i]), ptx::widen(y[i]), sum);
  return sum;
}

// stats; dq = 0 where no key is seen. Up to width 128 also turn = 0, and dq_sum = 0 where blocks
// add in any order.
template <class Element, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    prepare_backward(const __grid_constant__ BackwardParams p) {
  constexpr int kRows = BackwardTiles<kWidth>::kRows;
  constexpr int kLanes = kWidth / 8;  // a row, 16 bytes each
  constexpr int kStep = kRowThreads / kLanes, kSteps = kRows / kStep;
  ptx::let_next_start();
  if (blockIdx.x == 0 && threadIdx.x < 2) p.next_job[threadIdx.x] = 0;
  const RowBlock b = row_block<kRows>(p);
  if (b.row >= b.at.q_count) return;
  const int column = static_cast<int>(threadIdx.x) % kLanes * 8;
  const int first = static_cast<int>(threadIdx.x) / kLanes;
  const int count = b.at.q_count - b.row;  // rows that exist, if below kRows
  const std::int64_t row = b.at.q_begin + b.row;
  const std::uint16_t* o =
      p.o_data + b.batch * p.o_at.batch + b.head * p.o_at.head + row * p.o_at.row + column;
  const std::uint16_t* d_o =
      p.d_o_data + b.batch * p.d_o_at.batch + b.head * p.d_o_at.head + row * p.d_o_at.row + column;
  const std::int64_t constants =
      (static_cast<std::int64_t>(b.batch) * p.heads + b.head) * p.seq_q + row;
  float* stats = p.stats + b.tile * (2 * kRows + 4);

  uint4 x[kSteps], y[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int at = first + i * kStep;
    const bool inside = at < count && column < p.d;
    x[i] = inside ? __ldg(reinterpret_cast<const uint4*>(o + at * p.o_at.row)) : uint4{};
    y[i] = inside ? __ldg(reinterpret_cast<const uint4*>(d_o + at * p.d_o_at.row)) : uint4{};
  }
  // Whether some row's maximum is too large to fold: then the offsets leave it out.
  float m = 0, l = 0;
  const int own = static_cast<int>(threadIdx.x);
  if (own < kRows && own < count) {
    m = p.m[constants + own];
    l = p.l[constants + own];
  }
  const bool large = l > 0 && !(fabsf(m * tile::kLog2e) < tile::kFoldLimit);
  const bool huge = __syncthreads_or(large) != 0;
  // p = 0 beyond the document and where no key is seen.
  if (own < kRows)
    stats[own] = l > 0 ? log2f(l) + (huge ? 0.f : m * tile::kLog2e) : -tile::negative_infinity();
  if (own < 4) stats[2 * kRows + own] = huge ? 1.f : 0.f;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    float sum = dot8<Element>(x[i], y[i]);
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (column == 0) stats[kRows + first + i * kStep] = sum;
  }
  const Range seen = keys_seen(b.at, p.window, b.row, kRows);
  if (seen.last < seen.first && column < p.d) {
    std::uint16_t* dq = p.dq_out.data + b.batch * p.dq_out.at.batch + b.head * p.dq_out.at.head +
                        row * p.dq_out.at.row + column;
    for (int at = first; at < min(count, kRows); at += kStep)
      *reinterpret_cast<uint4*>(dq + at * p.dq_out.at.row) = uint4{};
  }
  if constexpr (kWidth <= 128) {
    if (own == 0) p.turn[b.tile] = 0;
    if (p.ordered) return;
    auto* sums = reinterpret_cast<float4*>(p.dq_sum + b.tile * (kRows * kWidth));
    for (int i = own; i < kRows * kWidth / 4; i += kRowThreads) sums[i] = make_float4(0, 0, 0, 0);
  }
}

}  // namespace tilefold::attention
