// Decoding: a few query rows over many keys, bound by the bandwidth of device memory. The rows of
// all query heads that share a kv head stand in one operand of 16 rows, so that each byte of K and
// V is read once for the group; the key axis is dealt out over the blocks, in a block over four
// warps.
//
//   warp: its own ring of (16 keys of K and V), its own m, l and O of the 16 rows; no barrier but
//         the warp's own until the end, where they are put together in order.
//
// Row r of the operand is query r / group, head r % group of the kv head's.
#pragma once

#include "kernels/attention/decode_tiles.h"
#include "kernels/attention/scores.cuh"
#include "kernels/attention/tiled_forward.cuh"
#include "kernels/ptx/grid_order.cuh"

namespace tilefold::attention {

template <class Element, int kWidth>
struct DecodeShared {
  static constexpr int kRowBytes = kWidth * static_cast<int>(sizeof(Element));
  static constexpr int kStages = decode_stages(kRowBytes), kWarps = decode_warps(kRowBytes);
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlockKeys = kWarps * kDecodeKeys;
  struct Stage {
    tile::WarpTile<Element, kDecodeKeys, kWidth> k, v;
  };
  tile::WarpTile<Element, kDecodeRows, kWidth> q;
  union {
    Stage ring[kWarps][kStages];
    float o[kWarps][kDecodeRows][kWidth];  // at the end
  };
  float m[kWarps][kDecodeRows], l[kWarps][kDecodeRows];
};

// What a row of the operand is in the tensors.
struct DecodeRow {
  int query, head;  // query of the document
};
__device__ inline DecodeRow decode_row(const Params& p, int key_head, int row) {
  return {row / p.group, key_head * p.group + row % p.group};
}

// The operand's rows, zero from `count` on. In the background; part of the thread's open group.
template <class Element, int kWidth>
__device__ void load_queries(const Params& p, DecodeShared<Element, kWidth>& shared,
                             const Sequence& sequence, int key_head, int first_row, int count) {
  using Tile = decltype(shared.q);
  for (int i = static_cast<int>(threadIdx.x); i < kDecodeRows * Tile::kChunks;
       i += DecodeShared<Element, kWidth>::kThreads) {
    const int row = i / Tile::kChunks, chunk = i % Tile::kChunks, column = chunk * Tile::kPer;
    const bool live = row < count && column < p.d;
    const DecodeRow x = decode_row(p, key_head, first_row + (live ? row : 0));
    const Element* from =
        p.q.at<const Element>(sequence.batch,
                              static_cast<std::int64_t>(sequence.at.q_begin) + x.query, x.head) +
        (live ? column : 0);
    if (p.q.vector) {
      ptx::copy_async(shared.q.at(row, chunk), from, live ? 16 : 0);
    } else {
      alignas(16) Element value[Tile::kPer] = {};
      for (int e = 0; e < Tile::kPer; ++e)
        if (live && column + e < p.d) value[e] = from[e];
      ptx::store_shared(shared.q.at(row, chunk), *reinterpret_cast<const uint4*>(value));
    }
  }
}

// The warps' results of 16 rows to the outputs, or to the part's partial results.
template <class Element, int kWidth>
__device__ void write_decoded(const Params& p, const Partials& parts, int part,
                              const DecodeShared<Element, kWidth>& shared, const Sequence& sequence,
                              int key_head, int first_row, int count) {
  using Shared = DecodeShared<Element, kWidth>;
  for (int i = static_cast<int>(threadIdx.x); i < count * p.d; i += Shared::kThreads) {
    const int row = i / p.d, column = i % p.d;
    float m = tile::negative_infinity(), l = 0, o = 0;
#pragma unroll
    for (int w = 0; w < Shared::kWarps; ++w) m = fmaxf(m, shared.m[w][row]);
    const float shift = m == tile::negative_infinity() ? 0 : m;
#pragma unroll
    for (int w = 0; w < Shared::kWarps; ++w) {
      const float weight = expf(shared.m[w][row] - shift);
      l = fmaf(weight, shared.l[w][row], l);
      o = fmaf(weight, shared.o[w][row][column], o);
    }
    const DecodeRow x = decode_row(p, key_head, first_row + row);
    const std::int64_t flat = static_cast<std::int64_t>(sequence.at.q_begin) + x.query;
    const std::int64_t constants =
        (static_cast<std::int64_t>(sequence.batch) * p.heads + x.head) * p.seq_q + flat;
    const bool split = parts.parts > 1;
    const std::int64_t at = part * parts.rows + constants;
    if (split) {
      parts.o[at * p.d + column] = o;
    } else {
      narrow(p.o.at<Element>(sequence.batch, flat, x.head) + column, l > 0 ? o / l : 0);
    }
    if (column != 0) continue;
    (split ? parts.m[at] : p.m[constants]) = m;
    (split ? parts.l[at] : p.l[constants]) = l;
  }
}

template <class Element, int kWidth>
__global__ void __launch_bounds__(DecodeShared<Element, kWidth>::kThreads)
    decode_kernel(const __grid_constant__ Params p, const __grid_constant__ Partials parts) {
  using Shared = DecodeShared<Element, kWidth>;
  extern __shared__ uint4 shared_memory[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = tile::lane();
  const int part = static_cast<int>(blockIdx.x) % parts.parts;
  const int job = static_cast<int>(blockIdx.x) / parts.parts, pair = job / p.tiles_q;
  const int first_row = job % p.tiles_q * kDecodeRows, key_head = pair % p.key_heads;
  const Sequence sequence = sequence_of(p, pair / p.key_heads);
  const Extent& at = sequence.at;
  const int count = min(at.q_count * p.group - first_row, kDecodeRows);
  ptx::let_next_start();
  if (count <= 0) return ptx::wait_for_last();

  const int first_query = first_row / p.group;
  const int queries = (first_row + count - 1) / p.group - first_query + 1;
  const Range tiles =
      part_of(tiles_of(keys_seen(at, p.window, first_query, queries), Shared::kBlockKeys), part,
              parts.parts);
  const Range all = keys_seen_by_all(at, p.window, first_query, queries);
  const Diagonal diagonal = diagonal_of(at, p.window);
  // K and V may be the last kernel's work: before it has ended they come as far as the L2 cache.
  const auto prefetch = [&](int j) {
    static_assert(2 * kDecodeKeys == 32);
    const int key = j * Shared::kBlockKeys + warp * kDecodeKeys + lane % kDecodeKeys;
    if (j > tiles.last || key >= at.k_count) return;
    const Strided& from = lane < kDecodeKeys ? p.k : p.v;
    const auto* row = from.at<const Element>(sequence.batch,
                                             static_cast<std::int64_t>(at.k_begin) + key, key_head);
    constexpr int kLine = 128 / static_cast<int>(sizeof(Element));
    for (int c = 0; c < p.d; c += kLine) ptx::prefetch_l2(row + c);
  };
  for (int i = 0; i < Shared::kStages - 1; ++i) prefetch(tiles.first + i);
  ptx::wait_for_last();
  const auto load = [&](int j) {
    if (j > tiles.last) return;
    auto& stage = shared.ring[warp][(j - tiles.first) % Shared::kStages];
    const int first = j * Shared::kBlockKeys + warp * kDecodeKeys;
    const std::int64_t row = static_cast<std::int64_t>(at.k_begin) + first;
    tile::load_rows<32>(stage.k, p.k.rows<Element>(sequence.batch, row, key_head),
                        at.k_count - first, p.d, lane);
    tile::load_rows<32>(stage.v, p.v.rows<Element>(sequence.batch, row, key_head),
                        at.k_count - first, p.d, lane);
  };
  load_queries(p, shared, sequence, key_head, first_row, count);
  ptx::copy_async_commit();
  for (int i = 0; i < Shared::kStages - 1; ++i) {
    load(tiles.first + i);
    ptx::copy_async_commit();
  }
  ptx::copy_async_wait<Shared::kStages - 1>();  // the queries
  __syncthreads();

  // A thread's two rows; beyond the last they repeat it and are not written.
  const DecodeRow upper = decode_row(p, key_head, first_row + min(lane / 4, count - 1));
  const DecodeRow lower = decode_row(p, key_head, first_row + min(lane / 4 + 8, count - 1));
  const Keep keep_upper(p, sequence.batch, upper.head), keep_lower(p, sequence.batch, lower.head);
  const float unit = unit_of<Element>(p);
  tile::RowFold rows;
  Fragment<kWidth> o;
  o.clear();
#pragma unroll 1
  for (int j = tiles.first; j <= tiles.last; ++j) {
    ptx::copy_async_wait<Shared::kStages - 2>();
    __syncwarp();  // step j is here, and all lanes are done with the one before it
    load(j + Shared::kStages - 1);
    ptx::copy_async_commit();

    auto& stage = shared.ring[warp][(j - tiles.first) % Shared::kStages];
    const int first = j * Shared::kBlockKeys + warp * kDecodeKeys;
    Fragment<kDecodeKeys> s;
    tile::multiply_rows(s, shared.q, 0, stage.k);
    to_scores<Element>(s, p);
    if (first < all.first || first + kDecodeKeys - 1 > all.last)
      hide_keys(s, at, diagonal, upper.query, lower.query, first);
    float rescale[2];
    fold<Element>(rows, s, unit, rescale);
    if (__any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1))
      o.scale_rows(rescale[0], rescale[1]);
    if (keep_upper.any())
      drop(s, keep_upper, keep_lower, at.q_begin + upper.query, at.q_begin + lower.query,
           at.k_begin + first);
    tile::Left<Element, kDecodeKeys> weights;
    tile::to_left(weights, s);
    tile::accumulate<kWidth, Element>(o, weights, stage.v);
  }

  rows.total();
  ptx::copy_async_wait<0>();
  __syncthreads();  // the rings give way to the results
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (lane % 4 != 0) continue;
    shared.m[warp][lane / 4 + 8 * i] = rows.m[i] * unit;
    shared.l[warp][lane / 4 + 8 * i] = rows.l[i];
  }
  store_rows(o, &shared.o[warp][0][0], kWidth, kDecodeRows, kWidth, true);
  __syncthreads();
  write_decoded(p, parts, part, shared, sequence, key_head, first_row, count);
}

template <class Element, int kWidth>
void launch_decode(const Params& p, const Partials& parts, CUstream_st* stream) {
  const std::int64_t blocks =
      static_cast<std::int64_t>(p.sequences) * p.key_heads * p.tiles_q * parts.parts;
  if (blocks == 0) return;
  tile::launch(decode_kernel<Element, kWidth>,
               {.blocks = blocks,
                .threads = DecodeShared<Element, kWidth>::kThreads,
                .shared_bytes = sizeof(DecodeShared<Element, kWidth>),
                .early = true},
               stream, p, parts);
}

}  // namespace tilefold::attention
