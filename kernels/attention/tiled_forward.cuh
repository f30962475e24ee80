// Portable forward: a block of four warps takes 64 query rows of a head and goes over the key tiles
// that they see, or over one part of them (split). From compute capability 8.0 on; every option.
//
//   warp: 16 rows    S = Q Kᵀ    p, m, l by the streaming softmax (tile/softmax.cuh)    O += p V
//
// K and V of the next tile arrive while this one is worked on (two stages, one barrier a tile).
#pragma once

#include "kernels/attention/scores.cuh"
#include "kernels/attention/tiled_forward.h"
#include "kernels/attention/tiled_tiles.h"
#include "kernels/tile/launch.cuh"

namespace tilefold::attention {

template <class Element, int kWidth>
struct ForwardShared {
  static constexpr int kKeys = forward_keys(kWidth * static_cast<int>(sizeof(Element)));
  tile::WarpTile<Element, kTileRows, kWidth> q;
  struct Stage {
    tile::WarpTile<Element, kKeys, kWidth> k, v;
  } stage[2];
};

// Part `part` of `parts` of the key tiles.
__device__ inline Range part_of(const Range& tiles, int part, int parts) {
  const std::int64_t count = most(static_cast<std::int64_t>(tiles.last) - tiles.first + 1, 0);
  return {tiles.first + static_cast<int>(count * part / parts),
          tiles.first + static_cast<int>(count * (part + 1) / parts) - 1};
}

// Tiles of `size` that hold the range.
__device__ inline Range tiles_of(const Range& range, int size) {
  if (range.last < range.first) return {0, -1};
  return {range.first / size, range.last / size};
}

template <class Element, int kWidth>
__global__ void __launch_bounds__(128)
    tiled_forward_kernel(const __grid_constant__ Params p, const __grid_constant__ Partials parts) {
  using Shared = ForwardShared<Element, kWidth>;
  constexpr int kKeys = Shared::kKeys;
  extern __shared__ uint4 shared_memory[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
  const int thread = static_cast<int>(threadIdx.x),
            part = static_cast<int>(blockIdx.x) % parts.parts;
  const int job = static_cast<int>(blockIdx.x) / parts.parts, pair = job / p.tiles_q;
  const int tile_row = (p.tiles_q - 1 - job % p.tiles_q) * kTileRows;  // the longest first
  const int head = pair % p.heads, key_head = head / p.group;
  const auto [at, batch] = sequence_of(p, pair / p.heads);
  if (tile_row >= at.q_count) return;

  const Range tiles =
      part_of(tiles_of(keys_seen(at, p.window, tile_row, kTileRows), kKeys), part, parts.parts);
  const Range all = keys_seen_by_all(at, p.window, tile_row, kTileRows);
  const Diagonal diagonal = diagonal_of(at, p.window);
  const auto load = [&](int j) {
    auto& stage = shared.stage[j % 2];
    const int first = j * kKeys;
    const std::int64_t row = static_cast<std::int64_t>(at.k_begin) + first;
    tile::load_rows<128>(stage.k, p.k.rows<Element>(batch, row, key_head), 0, at.k_count - first,
                         p.d, thread);
    tile::load_rows<128>(stage.v, p.v.rows<Element>(batch, row, key_head), 0, at.k_count - first,
                         p.d, thread);
  };
  if (tiles.first <= tiles.last) {
    const std::int64_t row = static_cast<std::int64_t>(at.q_begin) + tile_row;
    tile::load_rows<128>(shared.q, p.q.rows<Element>(batch, row, head), 0, at.q_count - tile_row,
                         p.d, thread);
    load(tiles.first);
  }
  ptx::copy_async_commit();

  const Keep keep(p, batch, head);
  const float unit = unit_of<Element>(p);
  const int upper = tile_row + tile::first_row(), lower = upper + 8;
  tile::RowFold rows;
  Fragment<kWidth> o;
  o.clear();
#pragma unroll 1
  for (int j = tiles.first; j <= tiles.last; ++j) {
    ptx::copy_async_wait<0>();
    __syncthreads();  // tile j is here, and all are done with the one before it
    if (j < tiles.last) load(j + 1);
    ptx::copy_async_commit();

    auto& stage = shared.stage[j % 2];
    const int first = j * kKeys;
    Fragment<kKeys> s;
    tile::multiply_rows(s, shared.q, thread / 32 * 16, stage.k);
    to_scores<Element>(s, p);
    if (first < all.first || first + kKeys - 1 > all.last)
      hide_keys(s, at, diagonal, upper, lower, first);
    float rescale[2];
    fold<Element>(rows, s, unit, rescale);
    if (__any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1))
      o.scale_rows(rescale[0], rescale[1]);
    if (keep.any()) drop(s, keep, keep, at.q_begin + upper, at.q_begin + lower, at.k_begin + first);
    tile::Left<Element, kKeys> weights;
    tile::to_left(weights, s);
    tile::accumulate<kWidth, Element>(o, weights, stage.v);
  }

  rows.total();
  const int warp_row = tile_row + thread / 32 * 16, count = at.q_count - warp_row;
  const std::int64_t flat = static_cast<std::int64_t>(at.q_begin) + warp_row;
  const std::int64_t constants =
      (static_cast<std::int64_t>(batch) * p.heads + head) * p.seq_q + flat;
  const bool split = parts.parts > 1;
  float* const m = split ? parts.m + part * parts.rows : p.m;
  float* const l = split ? parts.l + part * parts.rows : p.l;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = tile::lane() / 4 + 8 * i;
    if (tile::lane() % 4 != 0 || row >= count) continue;
    m[constants + row] = rows.m[i] * unit;
    l[constants + row] = rows.l[i];
  }
  if (split) {
    store_rows(o, parts.o + (part * parts.rows + constants) * p.d, p.d, count, p.d, p.d % 2 == 0);
  } else {
    o.scale_rows(rows.l[0] > 0 ? 1 / rows.l[0] : 0, rows.l[1] > 0 ? 1 / rows.l[1] : 0);
    store_rows(o, p.o.at<Element>(batch, flat, head), p.o.row, count, p.d, p.o.vector);
  }
}

template <class Element, int kWidth>
void launch_tiled_forward(const Params& p, const Partials& parts, CUstream_st* stream) {
  const std::int64_t blocks =
      static_cast<std::int64_t>(p.sequences) * p.heads * p.tiles_q * parts.parts;
  if (blocks == 0) return;
  tile::launch(tiled_forward_kernel<Element, kWidth>,
               {blocks, 128, sizeof(ForwardShared<Element, kWidth>)}, stream, p, parts);
}

}  // namespace tilefold::attention
