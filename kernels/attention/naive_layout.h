// Where the naive kernels' workspace keeps what; plain C++.
#pragma once

#include <algorithm>
#include <cstdint>

#include "contract/attention.h"

namespace tilefold::attention {

constexpr int kNaiveTile = 64;  // rows and columns of a tile of scores
// Forward is one kernel without workspace up to so many keys and such a width, at 16 bits: scores
// of a thread's two rows take 128 registers.
constexpr int kFusedKeys = 256, kFusedWidth = 128;
constexpr bool naive_fuses(const AttentionProblem& x) {
  return !x.backward && x.dtype != DType::f32 && x.max_seq_k <= kFusedKeys && x.d <= kFusedWidth;
}
// Shared memory of the largest of the kernels.
constexpr int naive_shared(int row_bytes, int size) {
  const int product = 2 * kNaiveTile * (kNaiveTile * size + row_bytes);
  const int fused = size == 2 && row_bytes <= 2 * kFusedWidth ? (64 + kFusedKeys) * row_bytes : 0;
  return product > fused ? product : fused;
}

// Matrices of `chunk` heads at a time: more than the caches hold, so that what is said to go to
// device memory goes there, and no more, so that long sequences are bound by one group of heads.
//
//   forward    p [chunk, max_seq_q, row]    stats [chunk, tiles of keys, max_seq_q] (m, l)
//   backward   p, ds [chunk, max_seq_q, row]    sums [batch, heads, seq_q]
struct NaiveLayout {
  static constexpr std::int64_t kChunkBytes = 1ll << 30;

  std::int64_t pairs, chunk;        // heads over all batch elements or documents
  std::int64_t row, matrix, tiles;  // elements of a row, of a matrix; tiles of keys
  std::int64_t p, ds, stats, sums, bytes;

  explicit NaiveLayout(const AttentionProblem& x) {
    const auto round_up = [](std::int64_t n, std::int64_t unit) {
      return (n + unit - 1) / unit * unit;
    };
    const std::int64_t group = x.heads / x.kv_heads, size = size_of(x.dtype);
    pairs = product({x.documents > 0 ? x.documents : x.batch, x.heads});
    row = round_up(x.max_seq_k, 8);
    matrix = round_up(product({x.max_seq_q, row}), 128);
    tiles = (x.max_seq_k + kNaiveTile - 1) / kNaiveTile;
    const std::int64_t stat_bytes = round_up(product({tiles, x.max_seq_q, 8}), 256);
    const std::int64_t unit =
        x.backward ? product({2, matrix, size}) : product({matrix, size}) + stat_bytes;
    const std::int64_t most = std::max(kChunkBytes, product({group, unit}));
    const std::int64_t used = std::min(product({pairs, unit}), most);
    chunk = unit > 0 ? std::max<std::int64_t>(used / unit / group, 1) * group : pairs;
    p = 0;
    ds = stats = chunk * matrix * size;
    bytes = round_up(used, 256) + (x.backward ? product({x.batch, x.heads, x.seq_q, 4}) : 0);
    sums = round_up(used, 256);
  }
};

}  // namespace tilefold::attention
