// What several ranks need around a run: starting and failing together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/gpu_of_rank.h"
#include "trainer/config.h"

namespace tilefold {

// Ends the program with this status; whatever had to be said was said.
struct ExitStatus {
  int status = 0;
};

// Runs `setup` on every rank; if it throws anywhere, the lowest rank that failed says why and all
// ranks leave with its status (ExitStatus). REQUIRES: `setup` makes no collective calls.
void together(Communicator& comm, const std::function<void()>& setup);

// Runs `body`, which may make collective calls; what it throws ends the whole job when there are
// several ranks, for the others may be waiting.
void or_abort(Communicator& comm, const std::function<void()>& body);

// The GPU of each rank, for run.device `device`; empty where the run is on the CPU. Collective; refuses,
// with one line for all ranks, what cannot work: fewer GPUs than ranks, no NCCL for several.
std::vector<RankGpu> assign_gpus(Communicator& comm, const std::string& device);
// The ordinal that this rank opens.
int gpu_of(const std::vector<RankGpu>& gpus, const Communicator& comm);

// CPU threads of this rank: run.threads, or the allowed cores shared by the ranks of this host.
int threads_of(const RunConfig& run, int local_ranks);

}  // namespace tilefold
