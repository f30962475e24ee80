// Attention forward for Hopper (sm_90a): bulk tensor copies by one warp, asynchronous warpgroup
// products and the streaming softmax by two or three warpgroups, persistent blocks. f16 and bf16.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/attention/geometry.cuh"
#include "kernels/attention/hopper_tiles.h"

struct CUstream_st;

namespace tilefold::attention {

struct ForwardParams {
  CUtensorMap q;  // boxes of 64 rows
  CUtensorMap k;  // boxes of kKeys rows
  CUtensorMap v;
  CUtensorMap o;                        // boxes of 64 rows
  std::uint16_t* o_data;                // [batch, seq_q, heads, d]
  std::int64_t o_row, o_head, o_batch;  // strides in elements
  float* m;                             // [batch, heads, seq_q]
  float* l;                             // [batch, heads, seq_q]
  Documents documents;
  Window window;
  int heads, group;  // query heads a key head
  int seq_q, seq_k, d;
  float scale, softcap;     // softcap 0: none
  int tiles_q;              // query tiles of the longest document
  std::int64_t pairs;       // (batch or document) x heads
  std::int64_t section;     // pairs whose tiles are taken together
  std::uint32_t* next_job;  // zeroed; null: jobs by block index
};

// kWidth: d padded to 64, 128 or 256. Queues the kernel on `blocks` blocks.
template <class Element, int kWidth>
void launch_hopper_forward(const ForwardParams& params, int blocks, CUstream_st* stream);

}  // namespace tilefold::attention
