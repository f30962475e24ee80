// The doctor's look at GPUs: what each rank's is, how they are linked, how fast sums between them are.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "comm/gpu_of_rank.h"
#include "device/device.h"

namespace tilefold {

// Of the GPU that a rank takes. Plain bytes, so that ranks can exchange it.
struct GpuFacts {
  RankGpu map;
  bool has_driver = false;  // has_nvidia_driver()
  char name[64] = {};
  std::int64_t memory_bytes = 0, free_bytes = 0;
  double from_host = 0;  // bytes a second of a copy from pinned memory of the host; 0: not measured
};

// What ranks measure together, one GPU each.
struct GpuSums {
  bool measured = false;
  bool right = true;       // whole numbers came out exactly, on this rank
  double small_bus = 0;    // bytes a second and direction of a ring, at 16 MiB
  double large_bus = 0;    // and at `large_bytes`
  std::int64_t large_bytes = 0;
};

// Collective: maps ranks to GPUs, and opens this rank's, if it has one, to look at it.
GpuFacts gpu_facts(Communicator& comm);
// Collective; measures only where each rank of several has a GPU and the build has NCCL.
GpuSums gpu_sums(Communicator& comm, const std::vector<GpuFacts>& ranks);

// The lines about this host's GPUs, their links and the software, and about every rank's.
void print_gpus(const std::vector<GpuFacts>& ranks);
void print_sums(const GpuSums& sums);

}  // namespace tilefold
