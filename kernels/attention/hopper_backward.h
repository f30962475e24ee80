// Attention backward for Hopper (sm_90a), f16 and bf16. In stream order:
//   prepare   per query: D = do . o and the exponent's offset m log2 e + log2 l
// then, for widths up to 128,
//   gradients a block holds one tile of keys and values, goes over the query tiles that see it, and
//             keeps dK and dV in registers; each step's part of dQ is added to float32 in the
//             workspace by the copy engine, key tile after key tile in a fixed order; the last
//             one's block rounds the sum
// and for 256, where dK and dV of 64 keys fill the registers and parts of dQ would be half of the
// traffic,
//   keys      dK and dV
//   queries   dQ, from scores computed once more
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/attention/hopper_jobs.h"

struct CUstream_st;

namespace tilefold::attention {

struct BackwardParams {
  struct Strides {
    std::int64_t row, head, batch;  // in elements
  };
  struct Result {
    CUtensorMap map;
    std::uint16_t* data;
    Strides at;
  };
  CUtensorMap q, d_o;             // boxes of kRows rows
  CUtensorMap k, v;               // boxes of kKeys rows
  Result dq_out;                  // [batch, seq_q, heads, d], boxes of kRows rows
  Result dk_out, dv_out;          // [batch, seq_k, kv_heads, d], boxes of 64 rows
  const std::uint16_t* o_data;    // [batch, seq_q, heads, d]
  const std::uint16_t* d_o_data;  // the same
  Strides o_at, d_o_at;
  const float* m;  // [batch, heads, seq_q]
  const float* l;
  float* stats;             // [query tiles, 2 kRows + 4]: StepStats
  float* dq_sum;            // [query tiles, kRows kWidth] in the order of fragments
  std::uint32_t* turn;      // [query tiles] key tiles that have added their part
  std::uint32_t* next_job;  // [2]
  Documents documents;
  Window window;
  int heads, key_heads, group;
  int batch, seq_q, seq_k, d;
  int tiles_q, tiles_k;         // of the longest document
  std::uint32_t tiles_of_head;  // query tiles that a head has room for; 2^32 over all heads at most
  std::uint32_t pairs;          // (sequence, key head)
  std::uint32_t down_pairs;     // that are taken in the order `down`
  std::uint32_t section;        // of the others: so many at a time
  float scale, softcap;
  bool ordered;       // deterministic
  QueryJobs queries;  // of the kernel for dQ at width 256
};

// kWidth: d padded to 64 or 128. Queues the kernels on `blocks` blocks.
template <class Element, int kWidth>
void launch_hopper_backward(const BackwardParams& params, int blocks, CUstream_st* stream);

// The same for d padded to 256; the kernels are hopper_wide_keys.cuh and hopper_wide_queries.cuh.
template <class Element>
void launch_hopper_wide_backward(const BackwardParams& params, int blocks, CUstream_st* stream);

}  // namespace tilefold::attention
