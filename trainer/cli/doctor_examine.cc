// What is wrong, from facts alone.
#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "trainer/cli/doctor.h"

namespace tilefold {
namespace {

// What a rank should find free in /dev/shm: Open MPI's buffers between the ranks of a host.
constexpr std::int64_t kSharedBytesOfRank = 32 << 20;

std::string gb(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB", static_cast<double>(bytes) * 1e-9);
  return text;
}

void examine_host(const RankFacts& first, std::vector<Finding>& found) {
  const std::string host = first.host;
  const int ranks = first.local_size;
  if (ranks > first.allowed_cores && first.allowed_cores == first.host_cores)
    found.push_back(
        {true, str(ranks, " ranks share the ", first.host_cores, " cores of ", host,
                   " and will wait for each other: start at most ", first.host_cores, " there")});
  if (ranks > 1 && first.allowed_cores * ranks < first.host_cores)
    found.push_back({false, str("each rank on ", host, " may use ", first.allowed_cores, " of ",
                                first.host_cores,
                                " cores, which leaves some idle: start with "
                                "mpirun --bind-to none, or more ranks")});
  if (ranks > 1 && first.shared_free_bytes < ranks * kSharedBytesOfRank)
    found.push_back(
        {true, str("/dev/shm of ", host, " has ", first.shared_free_bytes >> 20, " MiB free, and ",
                   ranks, " ranks need about ", (ranks * kSharedBytesOfRank) >> 20,
                   " MiB to talk: enlarge it (docker run --shm-size=1g)")});
  if (first.limit_bytes > 0 && first.limit_bytes < first.available_bytes)
    found.push_back(
        {false, str("this container may use ", gb(first.limit_bytes), " more, less than the ",
                    gb(first.available_bytes), " that ", host,
                    " has available: memory.limit auto keeps to that; give the container "
                    "more (docker run --memory) for larger runs")});
}

}  // namespace

std::vector<Finding> examine_gpus(const std::vector<GpuFacts>& ranks,
                                  const std::vector<GpuSums>& sums) {
  std::vector<Finding> found;
  std::vector<RankGpu> map;
  for (const GpuFacts& rank : ranks) map.push_back(rank.map);
  const bool any = std::any_of(map.begin(), map.end(), [](const RankGpu& r) { return r.visible > 0; });
  if (!any && ranks[0].has_driver)
    found.push_back({false, str(map[0].host,
                                " has an NVIDIA driver, but this build sees no GPU (why: the line "
                                "\"gpu\" above): build with CUDA, give the container its GPUs (docker "
                                "run --gpus all), or install a driver as new as the toolkit")});
  if (!any) return found;
  const std::string fault = ranks.size() > 1 ? fault_of(map) : "";
  if (!fault.empty()) found.push_back({true, fault});
  if (ranks.size() > 1 && fault.empty() && !sums[0].measured)
    found.push_back({true,
                     "ranks on GPUs cannot talk: this build has no NCCL, or less than 64 MiB of a GPU "
                     "is free; see the lines above, or set run.device to cpu"});
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const GpuFacts& r = ranks[rank];
    if (r.map.ordinal >= 0 && r.free_bytes < r.memory_bytes / 2)
      found.push_back({false, str("GPU ", r.map.ordinal, " (", r.map.pci, ") of ", r.map.host,
                                  " has ", gb(r.free_bytes), " of ", gb(r.memory_bytes),
                                  " free: another program uses it (nvidia-smi shows which); end it, or "
                                  "choose other GPUs by CUDA_VISIBLE_DEVICES")});
    if (!sums[rank].right)
      found.push_back({true, str("sums between GPUs come out wrong on rank ", rank, " (", r.map.pci,
                                 " of ", r.map.host,
                                 "): try NCCL_P2P_DISABLE=1, and have the link between the GPUs "
                                 "checked if that helps")});
  }
  constexpr double kSlow = 10e9;  // less than any direct link between GPUs of one host gives
  if (sums[0].measured && sums[0].large_bus < kSlow)
    found.push_back({false, str("sums between GPUs run at ", gb(static_cast<std::int64_t>(
                                                                sums[0].large_bus)),
                                "/s: they pass through the host or a slow network; look at "
                                "nvidia-smi topo -m and at what NCCL_DEBUG=INFO says")});
  return found;
}

std::vector<Finding> examine(const std::vector<RankFacts>& ranks) {
  std::vector<Finding> found;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankFacts& facts = ranks[rank];
    if (facts.local_rank == 0) examine_host(facts, found);
    if (!facts.multiplies_right)
      found.push_back({true, str("matrix products come out wrong on ", facts.host, " (rank ", rank,
                                 "): this OpenBLAS does not suit the processor; set "
                                 "OPENBLAS_CORETYPE=Haswell, or install a newer one")});
    if (facts.local_rank == 0 && !facts.folder_writable)
      found.push_back({false, str("the current folder cannot be written on ", facts.host,
                                  ": runs need run.out to name one that can")});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Finding& a, const Finding& b) { return a.fault > b.fault; });
  return found;
}

}  // namespace tilefold
