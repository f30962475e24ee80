// The naive forward of short sequences as one kernel: a block of four warps takes 64 query rows of
// a head and all of its keys at once, up to kKeys. A thread holds its two rows' scores of all keys,
// so the softmax is the plain one; P goes to memory only where it is kept.
#pragma once

#include "kernels/attention/naive_kernels.h"
#include "kernels/attention/naive_layout.h"
#include "kernels/attention/scores.cuh"
#include "kernels/tile/launch.cuh"

namespace tilefold::attention {

template <class Element, int kWidth, int kKeys>
struct FusedShared {
  tile::WarpTile<Element, kNaiveTile, kWidth> q;
  tile::WarpTile<Element, kKeys, kWidth> k;  // then V in its place: two blocks fit at d 128
};

template <class Element, int kWidth, int kKeys>
__global__ void __launch_bounds__(128) naive_fused_kernel(const __grid_constant__ NaiveParams x) {
  using Shared = FusedShared<Element, kWidth, kKeys>;
  extern __shared__ uint4 shared_memory[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
  const Params& p = x.p;
  const int thread = static_cast<int>(threadIdx.x), warp_row = thread / 32 * 16;
  const int pair = static_cast<int>(blockIdx.x) / p.tiles_q;
  const int tile_row = static_cast<int>(blockIdx.x) % p.tiles_q * kNaiveTile;
  const int head = pair % p.heads, key_head = head / p.group;
  const auto [at, batch] = sequence_of(p, pair / p.heads);
  if (tile_row >= at.q_count) return;

  const std::int64_t row = static_cast<std::int64_t>(at.q_begin) + tile_row;
  const auto load_keys = [&](const Strided& from) {
    tile::load_rows<128>(shared.k, from.rows<Element>(batch, at.k_begin, key_head), at.k_count, p.d,
                         thread);
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    __syncthreads();
  };
  tile::load_rows<128>(shared.q, p.q.rows<Element>(batch, row, head), at.q_count - tile_row, p.d,
                       thread);
  load_keys(p.k);

  Fragment<kKeys> s;
  tile::multiply_rows(s, shared.q, warp_row, shared.k);
  __syncthreads();
  to_scores<Element>(s, p);
  const int upper = tile_row + warp_row + tile::lane() / 4, lower = upper + 8;
  const Range all = keys_seen_by_all(at, p.window, tile_row, kNaiveTile);
  if (all.first > 0 || all.last < kKeys - 1)
    hide_keys(s, at, diagonal_of(at, p.window), upper, lower, 0);
  tile::RowFold rows;
  float rescale[2];
  const float unit = unit_of<Element>(p);
  fold<Element>(rows, s, unit, rescale);
  rows.total();
  s.scale_rows(rows.l[0] > 0 ? 1 / rows.l[0] : 0, rows.l[1] > 0 ? 1 / rows.l[1] : 0);

  const int count = at.q_count - tile_row - warp_row;
  const std::int64_t constants =
      (static_cast<std::int64_t>(batch) * p.heads + head) * p.seq_q + row + warp_row;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int of_warp = tile::lane() / 4 + 8 * i;
    if (tile::lane() % 4 != 0 || of_warp >= count) continue;
    p.m[constants + of_warp] = rows.m[i] * unit;
    p.l[constants + of_warp] = rows.l[i];
  }
  if (x.kept)
    store_rows(s, x.probabilities.at<Element>(pair) + (tile_row + warp_row) * x.probabilities.row,
               x.probabilities.row, count, static_cast<int>(x.probabilities.row),
               x.probabilities.vector);
  const Keep keep(p, batch, head);
  if (keep.any()) drop(s, keep, keep, at.q_begin + upper, at.q_begin + lower, at.k_begin);
  tile::Left<Element, kKeys> weights;
  tile::to_left(weights, s);

  load_keys(p.v);
  Fragment<kWidth> o;
  o.clear();
  tile::accumulate<kWidth, Element>(o, weights, shared.k);
  store_rows(o, p.o.at<Element>(batch, row + warp_row, head), p.o.row, count, p.d, p.o.vector);
}

template <class Element, int kWidth>
void launch_naive_fused(const NaiveParams& x, CUstream_st* stream) {
  const std::int64_t blocks = static_cast<std::int64_t>(x.pairs) * x.p.tiles_q;
  if (blocks == 0) return;
  if (x.p.tiles_k <= 1) {
    tile::launch(naive_fused_kernel<Element, kWidth, kNaiveTile>,
                 {blocks, 128, sizeof(FusedShared<Element, kWidth, kNaiveTile>)}, stream, x);
  } else {
    tile::launch(naive_fused_kernel<Element, kWidth, kFusedKeys>,
                 {blocks, 128, sizeof(FusedShared<Element, kWidth, kFusedKeys>)}, stream, x);
  }
}

}  // namespace tilefold::attention
