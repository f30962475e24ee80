// The kernels of naive.h. P holds probabilities before dropout.
//
//   scores     a block a 64 x 64 tile: p' = exp(t - m_tile) to P, m_tile and the row sums aside
//   softmax    a warp a row: m, l from the tiles'; P = p' exp(m_tile - m) / l
//   product    O = mask P V, dQ = scale dS K       or, over the columns of the left matrix,
//              dV = (mask P)ᵀ dO, dK = scale dSᵀ Q, summed over the heads of the group
//   gradients  a block a tile: p again (unless kept) and dS = p (mask dP - D) slope, both stored
//
// Exponentials relative to the tile's maximum, not scores, are what is stored: a score of 8 in
// bfloat16 is off by 1/64, and its p as much.
#pragma once

#include "kernels/attention/naive_kernels.h"
#include "kernels/attention/naive_layout.h"
#include "kernels/attention/scores.cuh"
#include "kernels/attention/tiled_tiles.h"
#include "kernels/tile/launch.cuh"

namespace tilefold::attention {

template <class Element, int kWidth>
struct TwoTiles {
  tile::WarpTile<Element, kNaiveTile, kWidth> first, second;
};

// A block of the kernels that make tiles of scores: whose, and where.
struct ScoreTile {
  int chunk_pair, head, key_head, row, key;  // pair of the chunk; first row and key
  Sequence sequence;
  bool live;
};
__device__ inline ScoreTile score_tile(const NaiveParams& x) {
  const Params& p = x.p;
  const int tiles = p.tiles_q * p.tiles_k, block = static_cast<int>(blockIdx.x);
  ScoreTile t;
  t.chunk_pair = block / tiles;
  t.key = block % p.tiles_k * kNaiveTile;
  t.row = block / p.tiles_k % p.tiles_q * kNaiveTile;
  const int pair = x.first_pair + t.chunk_pair;
  t.head = pair % p.heads;
  t.key_head = t.head / p.group;
  t.sequence = sequence_of(p, pair / p.heads);
  t.live = t.row < t.sequence.at.q_count && t.key < t.sequence.at.k_count;
  return t;
}

// 64 rows of queries and of keys, into the two tiles; waits for them.
template <class Element, int kWidth>
__device__ __forceinline__ void load_two(TwoTiles<Element, kWidth>& to, const Params& p,
                                         const ScoreTile& t, const Strided& queries,
                                         const Strided& keys) {
  const Extent& at = t.sequence.at;
  const int thread = static_cast<int>(threadIdx.x), batch = t.sequence.batch;
  const std::int64_t row = static_cast<std::int64_t>(at.q_begin) + t.row;
  const std::int64_t key = static_cast<std::int64_t>(at.k_begin) + t.key;
  tile::load_rows<128>(to.first, queries.rows<Element>(batch, row, t.head), at.q_count - t.row, p.d,
                       thread);
  tile::load_rows<128>(to.second, keys.rows<Element>(batch, key, t.key_head), at.k_count - t.key,
                       p.d, thread);
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
  __syncthreads();
}

// This warp's scores of the tile, hidden ones -inf.
template <class Element, int kWidth>
__device__ __forceinline__ void score(Fragment<kNaiveTile>& s,
                                      const TwoTiles<Element, kWidth>& tiles, const Params& p,
                                      const ScoreTile& t) {
  const Extent& at = t.sequence.at;
  tile::multiply_rows(s, tiles.first, static_cast<int>(threadIdx.x) / 32 * 16, tiles.second);
  to_scores<Element>(s, p);
  const Range all = keys_seen_by_all(at, p.window, t.row, kNaiveTile);
  const int upper = t.row + tile::first_row();
  if (t.key < all.first || t.key + kNaiveTile - 1 > all.last)
    hide_keys(s, at, diagonal_of(at, p.window), upper, upper + 8, t.key);
}

template <class Element, int kWidth>
__global__ void __launch_bounds__(128) naive_scores_kernel(const __grid_constant__ NaiveParams x) {
  extern __shared__ uint4 shared_memory[];
  auto& tiles = *reinterpret_cast<TwoTiles<Element, kWidth>*>(shared_memory);
  const Params& p = x.p;
  const ScoreTile t = score_tile(x);
  if (!t.live) return;
  load_two(tiles, p, t, p.q, p.k);
  Fragment<kNaiveTile> s;
  score(s, tiles, p, t);
  tile::RowFold rows;
  float rescale[2];
  const float unit = unit_of<Element>(p);
  fold<Element>(rows, s, unit, rescale);
  rows.total();

  const int warp_row = t.row + static_cast<int>(threadIdx.x) / 32 * 16;
  const int count = t.sequence.at.q_count - warp_row;
  float2* stats =
      x.stats +
      (static_cast<std::int64_t>(t.chunk_pair) * p.tiles_k + t.key / kNaiveTile) * x.max_rows +
      warp_row;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = tile::lane() / 4 + 8 * i;
    if (tile::lane() % 4 == 0 && row < count) stats[row] = make_float2(rows.m[i] * unit, rows.l[i]);
  }
  store_rows(s, x.probabilities.at<Element>(t.chunk_pair) + warp_row * x.probabilities.row + t.key,
             x.probabilities.row, count, static_cast<int>(least(x.probabilities.row - t.key, 64)),
             x.probabilities.vector);
}

constexpr int kSoftmaxWarps = 4;

template <class Element>
__global__ void __launch_bounds__(32 * kSoftmaxWarps)
    naive_softmax_kernel(const __grid_constant__ NaiveParams x) {
  const Params& p = x.p;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * kSoftmaxWarps + threadIdx.x / 32;
  const auto chunk_pair = static_cast<int>(index / x.max_rows);
  const auto row = static_cast<int>(index % x.max_rows);
  if (chunk_pair >= x.pairs) return;
  const int pair = x.first_pair + chunk_pair, head = pair % p.heads;
  const auto [at, batch] = sequence_of(p, pair / p.heads);
  if (row >= at.q_count) return;

  const int tiles = (at.k_count + kNaiveTile - 1) / kNaiveTile;
  const float2* stats = x.stats + static_cast<std::int64_t>(chunk_pair) * p.tiles_k * x.max_rows;
  const auto stat = [&](int tile) { return stats[tile * x.max_rows + row]; };
  float m = tile::negative_infinity(), l = 0;
  for (int i = lane; i < tiles; i += 32) m = fmaxf(m, stat(i).x);
  m = warp_max(m);
  const float shift = m == tile::negative_infinity() ? 0 : m;
  for (int i = lane; i < tiles; i += 32) l = fmaf(stat(i).y, expf(stat(i).x - shift), l);
  l = warp_sum(l);
  const std::int64_t constants =
      (static_cast<std::int64_t>(batch) * p.heads + head) * p.seq_q + at.q_begin + row;
  if (lane == 0) {
    p.m[constants] = m;
    p.l[constants] = l;
  }

  constexpr int kPer = 16 / static_cast<int>(sizeof(Element));
  Element* const to = x.probabilities.at<Element>(chunk_pair) + row * x.probabilities.row;
  const auto columns =
      static_cast<int>(least(x.probabilities.row, static_cast<std::int64_t>(tiles) * kNaiveTile));
  for (int column = lane * kPer; column < columns; column += 32 * kPer) {
    const float factor = l > 0 ? expf(stat(column / kNaiveTile).x - shift) / l : 0;
    if (x.probabilities.vector) {
      alignas(16) Element values[kPer];
      *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(to + column);
#pragma unroll
      for (int e = 0; e < kPer; ++e) narrow(values + e, widened(values[e]) * factor);
      *reinterpret_cast<uint4*>(to + column) = *reinterpret_cast<const uint4*>(values);
    } else {
      for (int e = column; e < min(column + kPer, columns); ++e)
        narrow(to + e, widened(to[e]) * factor);
    }
  }
}

// A left operand by dropout's factor, bit r of `kept` saying whether register r stays.
template <class Element, int kColumns>
__device__ __forceinline__ void drop_left(tile::Left<Element, kColumns>& a, std::uint32_t kept,
                                          float factor) {
  if constexpr (std::is_same_v<Element, float>) {
#pragma unroll
    for (int r = 0; r < a.kCount; ++r) a.x[r] *= (kept >> r & 1) != 0 ? factor : 0;
  } else {
#pragma unroll
    for (int step = 0; step < kColumns / 16; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 8 * step + 2 * i;
        Element low, high;
        low.bits = static_cast<std::uint16_t>(a.a[step][i]);
        high.bits = static_cast<std::uint16_t>(a.a[step][i] >> 16);
        a.a[step][i] =
            ptx::pack<Element>(widened(low) * ((kept >> r & 1) != 0 ? factor : 0),
                               widened(high) * ((kept >> (r + 1) & 1) != 0 ? factor : 0));
      }
  }
}

template <class Element, int kWidth>
struct ProductShared {
  struct Stage {
    tile::WarpTile<Element, kNaiveTile, kNaiveTile> left;
    tile::WarpTile<Element, kNaiveTile, kWidth> right;
  } stage[2];
};

// Rows of the result are queries (kColumns false) or keys.
template <class Element, int kWidth, bool kColumns>
__global__ void __launch_bounds__(128)
    naive_product_kernel(const __grid_constant__ NaiveParams x,
                         const __grid_constant__ NaiveProduct y) {
  using Shared = ProductShared<Element, kWidth>;
  extern __shared__ uint4 shared_memory[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
  const Params& p = x.p;
  const int thread = static_cast<int>(threadIdx.x), warp_row = thread / 32 * 16;
  const int tiles_out = kColumns ? p.tiles_k : p.tiles_q;
  const int tile_row = static_cast<int>(blockIdx.x) % tiles_out * kNaiveTile;
  const int chunk_pair = static_cast<int>(blockIdx.x) / tiles_out * (kColumns ? p.group : 1);
  const int pair = x.first_pair + chunk_pair, head = pair % p.heads, key_head = head / p.group;
  const auto [at, batch] = sequence_of(p, pair / p.heads);
  const int rows_out = kColumns ? at.k_count : at.q_count;
  const int rows_in = kColumns ? at.q_count : at.k_count;
  if (tile_row >= rows_out) return;

  // Steps go over the tiles of the sum, for each head of the group where rows are keys.
  const int tiles = (rows_in + kNaiveTile - 1) / kNaiveTile;
  const int steps = kColumns ? tiles * p.group : tiles;
  const auto load = [&](int step) {
    auto& stage = shared.stage[step % 2];
    const int of_group = step / tiles, first = step % tiles * kNaiveTile;
    const int row = kColumns ? first : tile_row, column = kColumns ? tile_row : first;
    const Element* left =
        y.left.at<const Element>(chunk_pair + of_group) + row * y.left.row + column;
    tile::load_rows<128>(stage.left, {left, y.left.row, y.left.vector}, at.q_count - row,
                         static_cast<int>(least(y.left.row - column, 64)), thread);
    const std::int64_t begin = kColumns ? at.q_begin : at.k_begin;
    tile::load_rows<128>(
        stage.right,
        y.right.rows<Element>(batch, begin + first, kColumns ? head + of_group : key_head),
        rows_in - first, p.d, thread);
  };
  if (steps > 0) load(0);
  ptx::copy_async_commit();

  Fragment<kWidth> sum;
  sum.clear();
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    ptx::copy_async_wait<0>();
    __syncthreads();
    if (step + 1 < steps) load(step + 1);
    ptx::copy_async_commit();

    auto& stage = shared.stage[step % 2];
    tile::Left<Element, kNaiveTile> left;
    if constexpr (kColumns) {
      tile::read_left_transposed(left, stage.left, warp_row);
    } else {
      tile::read_left(left, stage.left, warp_row);
    }
    if (y.drops) {
      const Keep keep(p, batch, kColumns ? head + step / tiles : head);
      const int upper = tile_row + warp_row + tile::lane() / 4, first = step % tiles * kNaiveTile;
      const std::uint32_t kept =
          kColumns ? kept_pairs<kNaiveTile, true>(keep, at.k_begin + upper, at.q_begin + first)
                   : kept_pairs<kNaiveTile, false>(keep, at.q_begin + upper, at.k_begin + first);
      drop_left<Element>(left, kept, keep.factor());
    }
    tile::accumulate<kWidth, Element>(sum, left, stage.right);
  }

  sum.scale(y.factor);
  const std::int64_t flat = (kColumns ? at.k_begin : at.q_begin) + tile_row + warp_row;
  store_rows(sum, y.out.at<Element>(batch, flat, kColumns ? key_head : head), y.out.row,
             rows_out - tile_row - warp_row, p.d, y.out.vector);
}

template <class Element, int kWidth>
__global__ void __launch_bounds__(128)
    naive_gradients_kernel(const __grid_constant__ NaiveParams x) {
  extern __shared__ uint4 shared_memory[];
  auto& tiles = *reinterpret_cast<TwoTiles<Element, kWidth>*>(shared_memory);
  const Params& p = x.p;
  const ScoreTile t = score_tile(x);
  if (!t.live) return;
  const Extent& at = t.sequence.at;
  const int warp_row = t.row + static_cast<int>(threadIdx.x) / 32 * 16;
  const int count = at.q_count - warp_row, upper = warp_row + tile::lane() / 4;
  const int columns = static_cast<int>(least(x.probabilities.row - t.key, 64));
  Element* const to_p =
      x.probabilities.at<Element>(t.chunk_pair) + warp_row * x.probabilities.row + t.key;
  const std::int64_t constants =
      (static_cast<std::int64_t>(t.sequence.batch) * p.heads + t.head) * p.seq_q + at.q_begin +
      warp_row;
  float m[2] = {0, 0}, inverse_l[2] = {0, 0}, sum[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = tile::lane() / 4 + 8 * i;
    const float l = row < count ? p.l[constants + row] : 0;
    if (!(l > 0)) continue;
    m[i] = p.m[constants + row];
    inverse_l[i] = 1 / l;
    sum[i] = p.sums[constants + row];
  }

  // p in `s`, the slope of the softcap in `slope`.
  Fragment<kNaiveTile> s, slope, dp;
  if (!x.kept || p.softcap > 0) {
    load_two(tiles, p, t, p.q, p.k);
    score(s, tiles, p, t);
    __syncthreads();
  }
  const float unit = unit_of<Element>(p), inverse_softcap = p.softcap > 0 ? 1 / p.softcap : 0;
#pragma unroll
  for (int r = 0; r < s.kCount; ++r) {
    const int i = s.is_lower(r) ? 1 : 0, column = s.column(r) + tile::first_column();
    const int row = tile::lane() / 4 + 8 * i;
    const float score = !x.kept || p.softcap > 0 ? s.x[r] * unit : 0;
    slope.x[r] = p.softcap > 0 ? slope_of(score, inverse_softcap) : 1;
    if (!x.kept) {
      s.x[r] = probability<Element>(score, m[i], inverse_l[i]);
    } else {
      s.x[r] =
          row < count && column < columns ? widened(to_p[row * x.probabilities.row + column]) : 0;
    }
  }
  if (!x.kept) store_rows(s, to_p, x.probabilities.row, count, columns, x.probabilities.vector);

  load_two(tiles, p, t, p.d_o, p.v);
  tile::multiply_rows(dp, tiles.first, static_cast<int>(threadIdx.x) / 32 * 16, tiles.second);
  const Keep keep(p, t.sequence.batch, t.head);
  std::uint32_t kept = 0xffffffffu;
  if (keep.any())
    kept = kept_pairs<kNaiveTile, false>(keep, at.q_begin + upper, at.k_begin + t.key);
#pragma unroll
  for (int r = 0; r < s.kCount; ++r) {
    const float mask = (kept >> r & 1) != 0 ? keep.factor() : 0;
    dp.x[r] = s.x[r] * (mask * dp.x[r] - sum[s.is_lower(r) ? 1 : 0]) * slope.x[r];
  }
  store_rows(dp, x.ds.at<Element>(t.chunk_pair) + warp_row * x.ds.row + t.key, x.ds.row, count,
             static_cast<int>(least(x.ds.row - t.key, 64)), x.ds.vector);
}

template <class Element, int kWidth>
void launch_naive_scores(const NaiveParams& x, bool backward, CUstream_st* stream) {
  const std::int64_t blocks = static_cast<std::int64_t>(x.pairs) * x.p.tiles_q * x.p.tiles_k;
  if (blocks == 0) return;
  tile::launch(
      backward ? naive_gradients_kernel<Element, kWidth> : naive_scores_kernel<Element, kWidth>,
      {blocks, 128, sizeof(TwoTiles<Element, kWidth>)}, stream, x);
}

template <class Element>
void launch_naive_softmax(const NaiveParams& x, CUstream_st* stream) {
  const std::int64_t rows = static_cast<std::int64_t>(x.pairs) * x.max_rows;
  if (rows == 0) return;
  tile::launch(naive_softmax_kernel<Element>,
               {(rows + kSoftmaxWarps - 1) / kSoftmaxWarps, 32 * kSoftmaxWarps}, stream, x);
}

template <class Element, int kWidth>
void launch_naive_product(const NaiveParams& x, const NaiveProduct& y, bool columns,
                          CUstream_st* stream) {
  const std::int64_t blocks = columns ? static_cast<std::int64_t>(x.pairs / x.p.group) * x.p.tiles_k
                                      : static_cast<std::int64_t>(x.pairs) * x.p.tiles_q;
  if (blocks == 0) return;
  tile::launch(columns ? naive_product_kernel<Element, kWidth, true>
                       : naive_product_kernel<Element, kWidth, false>,
               {blocks, 128, sizeof(ProductShared<Element, kWidth>)}, stream, x, y);
}

}  // namespace tilefold::attention
