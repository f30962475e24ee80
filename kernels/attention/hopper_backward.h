// Attention backward for Hopper (sm_90a). Three kernels in stream order:
//   prepare   per query: D = do . o and the exponent's offset m log2 e + log2 l; turns to zero
//   gradients a block holds one tile of keys and values, goes over the query tiles that see it, and
//             keeps dK and dV in registers; each step's part of dQ is added to float32 in the
//             workspace by the copy engine, key tile after key tile in a fixed order
//   finish    dQ = scale * sum, rounded
// f16 and bf16, width up to 128.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/attention/geometry.cuh"
#include "kernels/attention/hopper_tiles.h"

struct CUstream_st;

namespace tilefold::attention {

struct BackwardParams {
  struct Strides {
    std::int64_t row, head, batch;  // in elements
  };
  struct Keys {       // dk or dv, [batch, seq_k, kv_heads, d]
    CUtensorMap map;  // boxes of kKeys rows
    std::uint16_t* data;
    Strides at;
  };
  CUtensorMap q, d_o;  // boxes of kRows rows
  CUtensorMap k, v;    // boxes of kKeys rows
  Keys dk_out, dv_out;
  const std::uint16_t* o_data;    // [batch, seq_q, heads, d]
  const std::uint16_t* d_o_data;  // the same
  std::uint16_t* dq_data;         // the same
  Strides o_at, d_o_at, dq_at;
  const float* m;  // [batch, heads, seq_q]
  const float* l;
  float* stats;         // [query tiles, 2 kRows + 4]: offsets, D, whether scores are huge
  float* dq_sum;        // [query tiles, kRows kWidth] in the order of fragments
  std::uint32_t* turn;  // [query tiles] key tiles that have added their part
  std::uint32_t* next_job;
  Documents documents;
  Window window;
  int heads, key_heads, group;
  int batch, seq_q, seq_k, d;
  int tiles_q, tiles_k;         // of the longest document
  std::uint32_t tiles_of_head;  // query tiles that a head has room for; 2^32 over all heads at most
  std::int64_t down_pairs;      // (sequence, key head) pairs that are taken in the order `down`
  std::int64_t section;         // of the others: so many at a time
  float scale, softcap;
  bool ordered;  // deterministic
};

template <class Element, int kWidth>
void launch_hopper_backward(const BackwardParams& params, int blocks, CUstream_st* stream);

}  // namespace tilefold::attention
