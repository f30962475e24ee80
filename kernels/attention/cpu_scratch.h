// Scratch memory of the CPU's attention kernels, as layouts: the choice sums them up to workspace
// bytes, the kernels place their pointers by them. Offsets and sizes are in elements of the
// accumulator type (float; double for f64), multiples of 64 bytes.
#pragma once

#include <cstdint>

#include "contract/attention.h"

namespace tilefold::cpu_scratch {

inline constexpr std::int64_t kPanel = 32;  // query rows side by side in vector lanes

constexpr std::int64_t round_up(std::int64_t x, std::int64_t unit) {
  return (x + unit - 1) / unit * unit;
}

// Hands out consecutive pieces.
struct Carver {
  std::int64_t used = 0;
  constexpr std::int64_t take(std::int64_t elements) {
    const std::int64_t at = used;
    used += round_up(elements, 16);
    return at;
  }
};

// One worker's forward: a block of tile_q query rows against one tile of tile_k keys.
struct Forward {
  std::int64_t q = 0;       // [tile_q / 32][d][32]  (scale Q)^T
  std::int64_t o = 0;       // [tile_q / 32][d][32]  O^T, not yet divided by l
  std::int64_t s = 0;       // [tile_k][32]          S^T, then P^T
  std::int64_t keep = 0;    // [tile_k][32]          dropout factors
  std::int64_t k = 0;       // [tile_k][d]
  std::int64_t v = 0;       // [tile_k][d]
  std::int64_t rows = 0;    // [32][d]               rows on their way from or to 16-bit storage
  std::int64_t m = 0;       // [tile_q]
  std::int64_t l = 0;       // [tile_q]
  std::int64_t factor = 0;  // [32]
  std::int64_t total = 0;

  constexpr Forward(std::int64_t tile_q, std::int64_t tile_k, std::int64_t d, bool dropout) {
    Carver c;
    q = c.take(tile_q * d);
    o = c.take(tile_q * d);
    s = c.take(tile_k * kPanel);
    keep = c.take(dropout ? tile_k * kPanel : 0);
    k = c.take(tile_k * d);
    v = c.take(tile_k * d);
    rows = c.take(kPanel * d);
    m = c.take(tile_q);
    l = c.take(tile_q);
    factor = c.take(kPanel);
    total = c.used;
  }
};

// One worker's decoding: single rows against a tile of keys.
struct Decode {
  std::int64_t q = 0;     // [d]           scale q
  std::int64_t s = 0;     // [tile_k]      scores, then probabilities
  std::int64_t keep = 0;  // [tile_k][32]  dropout factors
  std::int64_t k = 0;     // [tile_k][d]
  std::int64_t v = 0;     // [tile_k][d]
  std::int64_t total = 0;

  constexpr Decode(std::int64_t tile_k, std::int64_t d, bool dropout) {
    Carver c;
    q = c.take(d);
    s = c.take(tile_k);
    keep = c.take(dropout ? tile_k * kPanel : 0);
    k = c.take(tile_k * d);
    v = c.take(tile_k * d);
    total = c.used;
  }
};

// What the parts of the key axis leave, for split and decode.
struct Partials {
  std::int64_t parts = 0, rows = 0, d = 0;
  std::int64_t o = 0;  // [parts][rows][d], rows = batch * heads * seq_q
  std::int64_t m = 0;  // [parts][rows]
  std::int64_t l = 0;  // [parts][rows]
  std::int64_t total = 0;

  Partials(const AttentionProblem& x, std::int64_t parts_)
      : parts(parts_), rows(product({x.batch, x.heads, x.seq_q})), d(x.d) {
    Carver c;
    o = c.take(product({parts, rows, d}));
    m = c.take(parts * rows);
    l = c.take(parts * rows);
    total = c.used;
  }
  // Of `part_rows` = parts * rows.
  static std::int64_t size(std::int64_t part_rows, std::int64_t d) {
    return round_up(product({part_rows, d}), 16) + 2 * round_up(part_rows, 16);
  }
};

// One worker's backward of a block of tile_q query rows.
struct Backward {
  std::int64_t padded_d = 0;       // d, to whole groups of 16 columns
  std::int64_t q = 0;              // [tile_q / 32][d][32]           (scale Q)^T
  std::int64_t d_o = 0;            // [tile_q / 32][d][32]           dO^T
  std::int64_t dq = 0;             // [tile_q / 32][d][32]           dQ^T / scale
  std::int64_t q_columns = 0;      // [padded_d / 32][tile_q][32]    scale Q, by groups of columns
  std::int64_t d_o_columns = 0;    // [padded_d / 32][tile_q][32]    dO
  std::int64_t p = 0;              // [tile_q / 32][tile_k][32]      S^T, then P^T (with dropout)
  std::int64_t ds = 0;             // [tile_q / 32][tile_k][32]      dP^T, then dS^T
  std::int64_t keep = 0;           // [tile_k][32]                   dropout factors
  std::int64_t k = 0;              // [tile_k][d]
  std::int64_t v = 0;              // [tile_k][d]
  std::int64_t rows = 0;           // [2][32][d]
  std::int64_t m = 0;              // [tile_q]   0 for rows without keys
  std::int64_t inverse_l = 0;      // [tile_q]   1 / l, 0 for rows without keys
  std::int64_t delta = 0;          // [tile_q]   D
  std::int64_t inverse_scale = 0;  // [tile_q]
  std::int64_t one = 0;            // [32]       ones
  std::int64_t total = 0;

  constexpr Backward(std::int64_t tile_q, std::int64_t tile_k, std::int64_t d, bool dropout) {
    Carver c;
    padded_d = round_up(d, 16);
    const std::int64_t columns = round_up(d, kPanel) * tile_q;
    q = c.take(tile_q * d);
    d_o = c.take(tile_q * d);
    dq = c.take(tile_q * d);
    q_columns = c.take(columns);
    d_o_columns = c.take(columns);
    p = c.take(tile_q * tile_k);
    ds = c.take(tile_q * tile_k);
    keep = c.take(dropout ? tile_k * kPanel : 0);
    k = c.take(tile_k * d);
    v = c.take(tile_k * d);
    rows = c.take(2 * kPanel * d);
    m = c.take(tile_q);
    inverse_l = c.take(tile_q);
    delta = c.take(tile_q);
    inverse_scale = c.take(tile_q);
    one = c.take(kPanel);
    total = c.used;
  }
};

// What backward's workers share: sums of dK and dV of the kv heads that are being worked on, and
// how many query blocks have added to each key tile.
struct BackwardSums {
  std::int64_t slots = 0;   // kv heads at a time: one a worker and one more, so that none waits
  std::int64_t tiles = 0;   // key tiles of a kv head, over all documents
  std::int64_t dk = 0;      // [slots][seq_k][padded_d]
  std::int64_t dv = 0;      // [slots][seq_k][padded_d]
  std::int64_t visits = 0;  // [slots][tiles] 64-bit counts
  std::int64_t total = 0;

  BackwardSums(const AttentionProblem& x, std::int64_t tile_k, std::int64_t workers,
               std::int64_t real_bytes) {
    Carver c;
    const std::int64_t units = x.batch * x.kv_heads;
    slots = units < workers + 1 ? units : workers + 1;
    tiles = x.seq_k / tile_k + (x.documents > 0 ? x.documents : 1) + 1;
    dk = c.take(product({slots, x.seq_k, round_up(x.d, 16)}));
    dv = c.take(product({slots, x.seq_k, round_up(x.d, 16)}));
    visits = c.take(slots * tiles * 8 / real_bytes);
    total = c.used;
  }
};

// One worker's naive call, in bytes: scores of a row, sums, and the probabilities (and dS) of one
// head in the storage type. As src/cpu/reference/attention.cc lays them out.
inline std::int64_t naive_bytes(const AttentionProblem& x) {
  const std::int64_t real = x.dtype == DType::f64 ? 8 : 4;
  const std::int64_t matrices = x.backward ? 2 : 1;
  const std::int64_t sums = x.max_seq_k + x.d + (x.backward ? 2 * x.max_seq_k * x.d : 0);
  return round_up(sums * real + product({matrices, x.max_seq_q, x.max_seq_k, size_of(x.dtype)}),
                  64);
}

}  // namespace tilefold::cpu_scratch
