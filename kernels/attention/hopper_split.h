// Attention forward for Hopper (sm_90a) where there are few query tiles: the blocks of a cluster
// share a tile of query rows, each takes a part of the keys, and they put their results together
// through each other's shared memory: one launch, no workspace. f16 and bf16, d up to 128, no
// packed documents. Sums are in a fixed order: bits repeat.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/attention/geometry.cuh"

struct CUstream_st;

namespace tilefold::attention {

struct SplitParams {
  CUtensorMap q;  // boxes of 64 rows
  CUtensorMap k;  // boxes of SplitTiles::kKeys rows
  CUtensorMap v;
  std::uint16_t* o;                     // [batch, seq_q, heads, d]
  std::int64_t o_row, o_head, o_batch;  // strides in elements
  float* m;                             // [batch, heads, seq_q]
  float* l;                             // [batch, heads, seq_q]
  Window window;
  int heads, group;  // query heads; of these a key head
  int seq_q, seq_k, d;
  int rows;     // of a tile of queries: 128, or 64, where the block's warpgroups share the keys too
  int tiles_q;  // of a head
  int pairs;    // batch x heads
  float scale, softcap;  // softcap 0: none
};

// kWidth: d padded to 64 or 128. parts: blocks of a cluster, 1, 2, 4, 8 or 16.
template <class Element, int kWidth>
void launch_hopper_split(const SplitParams& params, int parts, CUstream_st* stream);

// A block has all keys of 128 rows, kWidth 64.
template <class Element>
void launch_hopper_split_three(const SplitParams& params, CUstream_st* stream);

}  // namespace tilefold::attention
