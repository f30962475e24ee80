// What the kernels' scheduling warps know of a problem.
#pragma once

#include <cstdint>

#include "kernels/attention/geometry.cuh"
#include "kernels/attention/hopper_tiles.h"

namespace tilefold::attention {

// Jobs over query rows.
struct QueryJobs {
  Documents documents;
  Window window;
  int heads, group;  // query heads; of these a key head
  int seq_q, seq_k;
  int tiles_q;              // query tiles of the longest document
  std::int64_t pairs;       // (batch or document) x heads
  std::int64_t section;     // pairs whose tiles are taken together
  std::uint32_t* next_job;  // zeroed; null: jobs by block index
};

}  // namespace tilefold::attention
