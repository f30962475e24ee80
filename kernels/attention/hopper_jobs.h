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
  std::uint32_t jobs;       // pairs x tiles_q
  std::uint32_t pairs;      // (batch or document) x heads
  std::uint32_t section;    // pairs whose tiles are taken together, up to `pairs`
  int places;               // jobs that a block holds at a time: 2, or 3
  std::uint32_t* next_job;  // zeroed; null: jobs by block index
};

}  // namespace tilefold::attention
