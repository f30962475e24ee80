// Portable forward: a block of four warps takes 64 or 128 query rows of a head and goes over the
// key tiles that they see, or over one part of them (split). From compute capability 8.0 on; every
// option.
//
//   warp: 16 or 32 rows    S = Q Kᵀ    p, m, l by the streaming softmax (tile/softmax.cuh)    O +=
//   p V
//
// K and V of the next tile arrive while this one is worked on (two stages, one barrier a tile).
#pragma once

#include "kernels/attention/scores.cuh"
#include "kernels/attention/tiled_forward.h"
#include "kernels/attention/tiled_tiles.h"
#include "kernels/tile/launch.cuh"

namespace tilefold::attention {

template <class Element, int kWidth, int kRows>
struct ForwardShared {
  static constexpr int kKeys = forward_keys(kWidth * static_cast<int>(sizeof(Element)), kRows);
  tile::WarpTile<Element, kRows, kWidth> q;
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

// 16 rows of a warp, the first one `row` of the document, to the outputs or to the part's results.
template <class Element, int kWidth>
__device__ __forceinline__ void write_forward(const Params& p, const Partials& parts, int part,
                                              tile::RowFold& rows, Fragment<kWidth>& o,
                                              const Extent& at, int batch, int head, int row) {
  rows.total();
  const float unit = unit_of<Element>(p);
  const int count = at.q_count - row;
  const std::int64_t flat = static_cast<std::int64_t>(at.q_begin) + row;
  const std::int64_t constants =
      (static_cast<std::int64_t>(batch) * p.heads + head) * p.seq_q + flat;
  const bool split = parts.parts > 1;
  float* const m = split ? parts.m + part * parts.rows : p.m;
  float* const l = split ? parts.l + part * parts.rows : p.l;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int of_warp = tile::lane() / 4 + 8 * i;
    if (tile::lane() % 4 != 0 || of_warp >= count) continue;
    m[constants + of_warp] = rows.m[i] * unit;
    l[constants + of_warp] = rows.l[i];
  }
  if (split) {
    store_rows(o, parts.o + (part * parts.rows + constants) * p.d, p.d, count, p.d, p.d % 2 == 0);
  } else {
    o.scale_rows(rows.l[0] > 0 ? 1 / rows.l[0] : 0, rows.l[1] > 0 ? 1 / rows.l[1] : 0);
    store_rows(o, p.o.at<Element>(batch, flat, head), p.o.row, count, p.d, p.o.vector);
  }
}

template <class Element, int kWidth, int kRows>
__global__ void __launch_bounds__(128)
    tiled_forward_kernel(const __grid_constant__ Params p, const __grid_constant__ Partials parts) {
  using Shared = ForwardShared<Element, kWidth, kRows>;
  constexpr int kKeys = Shared::kKeys, kCount = kRows / 64;  // operands of 16 rows a warp
  extern __shared__ uint4 shared_memory[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
  const int thread = static_cast<int>(threadIdx.x), warp_first = thread / 32 * 16 * kCount;
  const int part = static_cast<int>(blockIdx.x) % parts.parts;
  const int job = static_cast<int>(blockIdx.x) / parts.parts, pair = job / p.tiles_q;
  const int tile_row = (p.tiles_q - 1 - job % p.tiles_q) * kRows;  // the longest first
  const int head = pair % p.heads, key_head = head / p.group;
  const auto [at, batch] = sequence_of(p, pair / p.heads);
  if (tile_row >= at.q_count) return;

  const Range tiles =
      part_of(tiles_of(keys_seen(at, p.window, tile_row, kRows), kKeys), part, parts.parts);
  const Range all = keys_seen_by_all(at, p.window, tile_row, kRows);
  const Diagonal diagonal = diagonal_of(at, p.window);
  const auto load = [&](int j) {
    auto& stage = shared.stage[j % 2];
    const int first = j * kKeys;
    const std::int64_t row = static_cast<std::int64_t>(at.k_begin) + first;
    tile::load_rows<128>(stage.k, p.k.rows<Element>(batch, row, key_head), at.k_count - first, p.d,
                         thread);
    tile::load_rows<128>(stage.v, p.v.rows<Element>(batch, row, key_head), at.k_count - first, p.d,
                         thread);
  };
  if (tiles.first <= tiles.last) {
    const std::int64_t row = static_cast<std::int64_t>(at.q_begin) + tile_row;
    tile::load_rows<128>(shared.q, p.q.rows<Element>(batch, row, head), at.q_count - tile_row, p.d,
                         thread);
    load(tiles.first);
  }
  ptx::copy_async_commit();

  const Keep keep(p, batch, head);
  const float unit = unit_of<Element>(p);
  const int upper = tile_row + warp_first + tile::lane() / 4;
  tile::RowFold rows[kCount];
  Fragment<kWidth> o[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) o[i].clear();
#pragma unroll 1
  for (int j = tiles.first; j <= tiles.last; ++j) {
    ptx::copy_async_wait<0>();
    __syncthreads();  // tile j is here, and all are done with the one before it
    if (j < tiles.last) load(j + 1);
    ptx::copy_async_commit();

    auto& stage = shared.stage[j % 2];
    const int first = j * kKeys;
    Fragment<kKeys> s[kCount];
    tile::Left<Element, kKeys> weights[kCount];
    tile::multiply_rows(s, shared.q, warp_first, stage.k);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = upper + 16 * i;
      to_scores<Element>(s[i], p);
      if (first < all.first || first + kKeys - 1 > all.last)
        hide_keys(s[i], at, diagonal, row, row + 8, first);
      float rescale[2];
      fold<Element>(rows[i], s[i], unit, rescale);
      if (__any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1))
        o[i].scale_rows(rescale[0], rescale[1]);
      if (keep.any()) drop(s[i], keep, at.q_begin + row, at.k_begin + first);
      tile::to_left(weights[i], s[i]);
    }
    tile::accumulate<kCount, kWidth, Element>(o, weights, stage.v);
  }

#pragma unroll
  for (int i = 0; i < kCount; ++i)
    write_forward<Element>(p, parts, part, rows[i], o[i], at, batch, head,
                           tile_row + warp_first + 16 * i);
}

template <class Element, int kWidth, int kRows>
void launch_tiled_forward(const Params& p, const Partials& parts, CUstream_st* stream) {
  const std::int64_t blocks =
      static_cast<std::int64_t>(p.sequences) * p.heads * p.tiles_q * parts.parts;
  if (blocks == 0) return;
  tile::launch(tiled_forward_kernel<Element, kWidth, kRows>,
               {blocks, 128, sizeof(ForwardShared<Element, kWidth, kRows>)}, stream, p, parts);
}

}  // namespace tilefold::attention
