// Sums between the memories of GPUs. Defined in nccl.cc, or in no_nccl.cc in a build without NCCL.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "device/device.h"

namespace tilefold {

// Why this build has no NCCL, in one sentence; empty if it has.
std::string nccl_absence();
// "NCCL 2.28.9"; empty in a build without it.
std::string nccl_version();

// A communicator of the same ranks whose start_sum() takes memory of `device`, a GPU, on a stream of
// its own; everything else is `host`'s. Collective. Throws Error if the build has no NCCL.
// host, device and compute outlive it; REQUIRES: one GPU a rank.
std::unique_ptr<Communicator> open_nccl(Communicator& host, Device& device, Stream& compute);

}  // namespace tilefold
