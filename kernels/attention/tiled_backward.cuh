// Portable backward, in two kernels without a sum between blocks, so that bits repeat in any order
// of blocks: seven products for the five of one kernel whose blocks add to dQ.
//
//   keys      a block of 64 or 128 keys, over all query tiles of the group's heads that see them:
//             Sᵀ = K Qᵀ, dPᵀ = V dOᵀ    dV += pᵀ dO    dK += dSᵀ Q      (p, dS in registers)
//   queries   a block of as many query rows, over the key tiles that they see:
//             S = Q Kᵀ, dP = dO Vᵀ      dQ += dS K
//
//   p = exp(t - m) / l      dS = p (mask dP - D) (1 - (t / softcap)^2)
//
// Where tiles are few, each kernel's blocks take one part of the tiles that they go over, and their
// float32 results are added after (add_parts.cuh).
//
// At d 256 the sums of dK and dV of 16 keys would take 256 registers a thread: there a second set
// of four warps makes the same scores and sums the other half of the columns.
#pragma once

#include "kernels/attention/row_sums.cuh"
#include "kernels/attention/scores.cuh"
#include "kernels/attention/tiled_backward.h"
#include "kernels/attention/tiled_forward.cuh"

namespace tilefold::attention {

template <class Element, int kWidth>
struct BackwardShared {
  static constexpr int kRowBytes = kWidth * static_cast<int>(sizeof(Element));
  static constexpr int kRows = backward_rows(kRowBytes), kStages = backward_stages(kRowBytes);
  static constexpr int kResident = backward_resident(kRowBytes, static_cast<int>(sizeof(Element)));
  static constexpr int kCount = kResident / 64;              // operands of 16 rows a warp
  tile::WarpTile<Element, kResident, kWidth> first, second;  // K and V, or Q and dO
  struct Stage {
    tile::WarpTile<Element, kRows, kWidth> first, second;  // Q and dO, or K and V
  } stage[kStages];
  float m[kStages][kRows], inverse_l[kStages][kRows], sum[kStages][kRows];  // of a stage's queries
};

template <class Element, int kWidth>
constexpr int kKeysThreads = kWidth > 128 ? 256 : 128;

template <class Element, int kWidth>
__global__ void __launch_bounds__(kKeysThreads<Element, kWidth>)
    tiled_keys_kernel(const __grid_constant__ Params p,
                      const __grid_constant__ GradientParts parts) {
  using Shared = BackwardShared<Element, kWidth>;
  constexpr int kThreads = kKeysThreads<Element, kWidth>, kRows = Shared::kRows;
  constexpr int kResident = Shared::kResident, kCount = Shared::kCount;
  constexpr int kColumns = kWidth > 128 ? kWidth / 2 : kWidth;
  extern __shared__ uint4 shared_memory[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
  const int thread = static_cast<int>(threadIdx.x), warp_row = thread % 128 / 32 * 16 * kCount;
  const int column = thread / 128 * kColumns;  // of this warp's sums
  const int part = static_cast<int>(blockIdx.x) % parts.parts;
  const int job = static_cast<int>(blockIdx.x) / parts.parts, pair = job / p.tiles_k;
  const int tile_key = job % p.tiles_k * kResident, key_head = pair % p.key_heads;
  const auto [at, batch] = sequence_of(p, pair / p.key_heads);
  if (tile_key >= at.k_count) return;

  const Range tiles = tiles_of(queries_seeing(at, p.window, tile_key, kResident), kRows);
  const Range all = queries_seeing_all(at, p.window, tile_key, kResident);
  const Diagonal diagonal = diagonal_of(at, p.window);
  const int per_head = tiles.last - tiles.first + 1;
  const Range steps = part_of({0, per_head * p.group - 1}, part, parts.parts);
  const auto head_of = [&](int step) { return key_head * p.group + step / per_head; };
  const auto query_of = [&](int step) { return (tiles.first + step % per_head) * kRows; };
  const auto load = [&](int step) {
    const int slot = step % Shared::kStages, head = head_of(step), query = query_of(step);
    auto& stage = shared.stage[slot];
    const std::int64_t row = static_cast<std::int64_t>(at.q_begin) + query;
    tile::load_rows<kThreads>(stage.first, p.q.rows<Element>(batch, row, head), at.q_count - query,
                              p.d, thread);
    tile::load_rows<kThreads>(stage.second, p.d_o.rows<Element>(batch, row, head),
                              at.q_count - query, p.d, thread);
    if (thread < kRows) {
      const std::int64_t constants =
          (static_cast<std::int64_t>(batch) * p.heads + head) * p.seq_q + row + thread;
      const bool live = query + thread < at.q_count;
      const float l = live ? p.l[constants] : 0;
      shared.m[slot][thread] = l > 0 ? p.m[constants] : 0;
      shared.inverse_l[slot][thread] = l > 0 ? 1 / l : 0;
      shared.sum[slot][thread] = live ? p.sums[constants] : 0;
    }
  };
  const std::int64_t key_row = static_cast<std::int64_t>(at.k_begin) + tile_key;
  if (steps.first <= steps.last) {
    tile::load_rows<kThreads>(shared.first, p.k.rows<Element>(batch, key_row, key_head),
                              at.k_count - tile_key, p.d, thread);
    tile::load_rows<kThreads>(shared.second, p.v.rows<Element>(batch, key_row, key_head),
                              at.k_count - tile_key, p.d, thread);
    load(steps.first);
  }
  ptx::copy_async_commit();

  const float unit = unit_of<Element>(p), inverse_softcap = p.softcap > 0 ? 1 / p.softcap : 0;
  const int upper = tile_key + warp_row + tile::lane() / 4;
  Fragment<kColumns> dk[kCount], dv[kCount];
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    dk[n].clear();
    dv[n].clear();
  }
#pragma unroll 1
  for (int step = steps.first; step <= steps.last; ++step) {
    ptx::copy_async_wait<0>();
    __syncthreads();
    if (Shared::kStages > 1 && step < steps.last) load(step + 1);
    ptx::copy_async_commit();

    const int slot = step % Shared::kStages, query = query_of(step);
    auto& stage = shared.stage[slot];
    Fragment<kRows> s[kCount], dp[kCount];
    tile::Left<Element, kRows> weights[kCount], gradients[kCount];
    tile::multiply_rows(s, shared.first, warp_row, stage.first);
    tile::multiply_rows(dp, shared.second, warp_row, stage.second);
    const Keep keep(p, batch, head_of(step));
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const int key = upper + 16 * n;
      to_scores<Element>(s[n], p);
      if (query < all.first || query + kRows - 1 > all.last)
        hide_queries(s[n], at, diagonal, key, key + 8, query);
      std::uint32_t kept = 0xffffffffu;  // a bit a register
      if (keep.any()) kept = kept_pairs<kRows, true>(keep, at.k_begin + key, at.q_begin + query);
#pragma unroll
      for (int r = 0; r < s[n].kCount; ++r) {
        const int i = s[n].column(r) + tile::first_column();
        const float t = s[n].x[r] * unit;
        const float x = probability<Element>(t, shared.m[slot][i], shared.inverse_l[slot][i]);
        const float mask = (kept >> r & 1) != 0 ? keep.factor() : 0;
        const float slope = p.softcap > 0 ? slope_of(t, inverse_softcap) : 1;
        dp[n].x[r] = x * (mask * dp[n].x[r] - shared.sum[slot][i]) * slope;
        s[n].x[r] = x * mask;
      }
      tile::to_left(weights[n], s[n]);
      tile::to_left(gradients[n], dp[n]);
    }
    tile::accumulate<kCount, kColumns, Element>(dv, weights, stage.second, column);
    tile::accumulate<kCount, kColumns, Element>(dk, gradients, stage.first, column);
    if (Shared::kStages == 1) {
      __syncthreads();
      if (step < steps.last) load(step + 1);
      ptx::copy_async_commit();
    }
  }

#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    const int row = warp_row + 16 * n, count = at.k_count - tile_key - row, d = p.d - column;
    dk[n].scale(p.scale);
    if (parts.parts > 1) {
      const std::int64_t to =
          (part * parts.key_rows +
           (static_cast<std::int64_t>(batch) * p.seq_k + key_row + row) * p.key_heads + key_head) *
              p.d +
          column;
      const std::int64_t stride = static_cast<std::int64_t>(p.key_heads) * p.d;
      store_rows(dk[n], parts.dk + to, stride, count, d, p.d % 2 == 0);
      store_rows(dv[n], parts.dv + to, stride, count, d, p.d % 2 == 0);
      continue;
    }
    store_rows(dk[n], p.dk.at<Element>(batch, key_row + row, key_head) + column, p.dk.row, count, d,
               p.dk.vector);
    store_rows(dv[n], p.dv.at<Element>(batch, key_row + row, key_head) + column, p.dv.row, count, d,
               p.dv.vector);
  }
}

template <class Element, int kWidth>
__global__ void __launch_bounds__(128)
    tiled_queries_kernel(const __grid_constant__ Params p,
                         const __grid_constant__ GradientParts parts) {
  using Shared = BackwardShared<Element, kWidth>;
  constexpr int kKeys = Shared::kRows, kResident = Shared::kResident, kCount = Shared::kCount;
  extern __shared__ uint4 shared_memory[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
  const int thread = static_cast<int>(threadIdx.x), warp_row = thread / 32 * 16 * kCount;
  const int part = static_cast<int>(blockIdx.x) % parts.parts;
  const int job = static_cast<int>(blockIdx.x) / parts.parts, pair = job / p.tiles_q;
  const int tile_row = (p.tiles_q - 1 - job % p.tiles_q) * kResident;  // the longest first
  const int head = pair % p.heads, key_head = head / p.group;
  const auto [at, batch] = sequence_of(p, pair / p.heads);
  if (tile_row >= at.q_count) return;

  const Range tiles =
      part_of(tiles_of(keys_seen(at, p.window, tile_row, kResident), kKeys), part, parts.parts);
  const Range all = keys_seen_by_all(at, p.window, tile_row, kResident);
  const Diagonal diagonal = diagonal_of(at, p.window);
  const auto load = [&](int j) {
    auto& stage = shared.stage[j % Shared::kStages];
    const int first = j * kKeys;
    const std::int64_t row = static_cast<std::int64_t>(at.k_begin) + first;
    tile::load_rows<128>(stage.first, p.k.rows<Element>(batch, row, key_head), at.k_count - first,
                         p.d, thread);
    tile::load_rows<128>(stage.second, p.v.rows<Element>(batch, row, key_head), at.k_count - first,
                         p.d, thread);
  };
  const std::int64_t row = static_cast<std::int64_t>(at.q_begin) + tile_row;
  if (tiles.first <= tiles.last) {
    tile::load_rows<128>(shared.first, p.q.rows<Element>(batch, row, head), at.q_count - tile_row,
                         p.d, thread);
    tile::load_rows<128>(shared.second, p.d_o.rows<Element>(batch, row, head),
                         at.q_count - tile_row, p.d, thread);
    load(tiles.first);
  }
  ptx::copy_async_commit();

  const Keep keep(p, batch, head);
  const float unit = unit_of<Element>(p), inverse_softcap = p.softcap > 0 ? 1 / p.softcap : 0;
  const int count = at.q_count - tile_row - warp_row;
  const std::int64_t constants =
      (static_cast<std::int64_t>(batch) * p.heads + head) * p.seq_q + row + warp_row;
  float m[kCount][2] = {}, inverse_l[kCount][2] = {}, sum[kCount][2] = {};
#pragma unroll
  for (int i = 0; i < 2 * kCount; ++i) {
    const int at_row = tile::lane() / 4 + 8 * i;
    const float l = at_row < count ? p.l[constants + at_row] : 0;
    if (!(l > 0)) continue;
    m[i / 2][i % 2] = p.m[constants + at_row];
    inverse_l[i / 2][i % 2] = 1 / l;
    sum[i / 2][i % 2] = p.sums[constants + at_row];
  }
  const int upper = tile_row + warp_row + tile::lane() / 4;
  Fragment<kWidth> dq[kCount];
#pragma unroll
  for (int n = 0; n < kCount; ++n) dq[n].clear();
#pragma unroll 1
  for (int j = tiles.first; j <= tiles.last; ++j) {
    ptx::copy_async_wait<0>();
    __syncthreads();
    if (Shared::kStages > 1 && j < tiles.last) load(j + 1);
    ptx::copy_async_commit();

    auto& stage = shared.stage[j % Shared::kStages];
    const int first = j * kKeys;
    Fragment<kKeys> s[kCount], dp[kCount];
    tile::Left<Element, kKeys> gradients[kCount];
    tile::multiply_rows(s, shared.first, warp_row, stage.first);
    tile::multiply_rows(dp, shared.second, warp_row, stage.second);
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const int query = upper + 16 * n;
      to_scores<Element>(s[n], p);
      if (first < all.first || first + kKeys - 1 > all.last)
        hide_keys(s[n], at, diagonal, query, query + 8, first);
      if (keep.any()) drop(dp[n], keep, at.q_begin + query, at.k_begin + first);
#pragma unroll
      for (int r = 0; r < s[n].kCount; ++r) {
        const int i = s[n].is_lower(r) ? 1 : 0;
        const float t = s[n].x[r] * unit;
        const float slope = p.softcap > 0 ? slope_of(t, inverse_softcap) : 1;
        dp[n].x[r] =
            probability<Element>(t, m[n][i], inverse_l[n][i]) * (dp[n].x[r] - sum[n][i]) * slope;
      }
      tile::to_left(gradients[n], dp[n]);
    }
    tile::accumulate<kCount, kWidth, Element>(dq, gradients, stage.first);
    if (Shared::kStages == 1) {
      __syncthreads();
      if (j < tiles.last) load(j + 1);
      ptx::copy_async_commit();
    }
  }

#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    const std::int64_t first = row + warp_row + 16 * n;
    dq[n].scale(p.scale);
    if (parts.parts > 1) {
      float* const to =
          parts.dq + (part * parts.query_rows +
                      (static_cast<std::int64_t>(batch) * p.seq_q + first) * p.heads + head) *
                         p.d;
      store_rows(dq[n], to, static_cast<std::int64_t>(p.heads) * p.d, count - 16 * n, p.d,
                 p.d % 2 == 0);
      continue;
    }
    store_rows(dq[n], p.dq.at<Element>(batch, first, head), p.dq.row, count - 16 * n, p.d,
               p.dq.vector);
  }
}

template <class Element, int kWidth>
void launch_tiled_backward(const Params& p, const GradientParts& parts, CUstream_st* stream) {
  constexpr std::size_t kShared = sizeof(BackwardShared<Element, kWidth>);
  const std::int64_t sequences = static_cast<std::int64_t>(p.sequences) * parts.parts;
  const std::int64_t keys = sequences * p.key_heads * p.tiles_k;
  const std::int64_t queries = sequences * p.heads * p.tiles_q;
  if (keys > 0)
    tile::launch(tiled_keys_kernel<Element, kWidth>, {keys, kKeysThreads<Element, kWidth>, kShared},
                 stream, p, parts);
  if (queries > 0)
    tile::launch(tiled_queries_kernel<Element, kWidth>, {queries, 128, kShared}, stream, p, parts);
}

}  // namespace tilefold::attention
