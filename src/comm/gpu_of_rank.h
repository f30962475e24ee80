// Which GPU each rank computes on: the one of its number among the ranks of its host; or the only one
// that it sees, where the launcher gave each rank a GPU of its own (CUDA_VISIBLE_DEVICES).
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"

namespace tilefold {

// Plain bytes, so that ranks can exchange it.
struct RankGpu {
  char host[64] = {};
  int local_rank = 0, local_size = 1;
  int visible = 0;     // GPUs that this rank sees
  int ordinal = -1;    // of them, the one it takes; -1: there is none for it
  char pci[32] = {};   // its address; empty without one
};

// Collective: every rank's choice, in rank order. `pci_of` gives the address of a visible GPU.
std::vector<RankGpu> map_gpus(Communicator& comm, int visible,
                              std::string (*pci_of)(int ordinal));

// What is wrong with the map, in one sentence with a remedy; empty if each rank has a GPU for itself.
std::string fault_of(const std::vector<RankGpu>& ranks);

// "rank 3: GPU 1 (0000:1b:00.0) of node7"
std::string line_of(const std::vector<RankGpu>& ranks, std::size_t rank);

}  // namespace tilefold
