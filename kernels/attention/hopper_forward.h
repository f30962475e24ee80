// Attention forward for Hopper (sm_90a): bulk tensor copies by one warp, asynchronous warpgroup
// products and the streaming softmax by two or three warpgroups, persistent blocks. f16 and bf16.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/attention/hopper_jobs.h"

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
  QueryJobs jobs;
  int d;
  float scale, softcap;  // softcap 0: none
};

// kWidth: d padded to 64, 128 or 256. Queues the kernel on `blocks` blocks.
template <class Element, int kWidth>
void launch_hopper_forward(const ForwardParams& params, int blocks, CUstream_st* stream);

}  // namespace tilefold::attention
