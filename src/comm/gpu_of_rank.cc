#include "comm/gpu_of_rank.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "base/error.h"

namespace tilefold {

std::vector<RankGpu> map_gpus(Communicator& comm, int visible,
                              std::string (*pci_of)(int ordinal)) {
  RankGpu mine;
  gethostname(mine.host, sizeof mine.host - 1);
  mine.local_rank = comm.local_rank();
  mine.local_size = comm.local_size();
  mine.visible = visible;
  const int wanted = visible == 1 ? 0 : comm.local_rank();
  if (wanted < visible) {
    mine.ordinal = wanted;
    const std::string pci = pci_of(wanted);
    std::memcpy(mine.pci, pci.data(), std::min(pci.size(), sizeof mine.pci - 1));
  }
  std::vector<RankGpu> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

std::string fault_of(const std::vector<RankGpu>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].visible == 0)
      return str("rank ", rank, " on ", ranks[rank].host,
                 " sees no GPU, so the ranks cannot all compute on GPUs: leave that host out, or set "
                 "run.device to cpu");
  for (const RankGpu& first : ranks) {
    const std::string_view host = first.host;
    if (first.local_rank != 0) continue;
    std::set<std::string> addresses;
    int most = 0;
    for (const RankGpu& other : ranks)
      if (host == other.host) {
        most = std::max(most, other.visible);
        if (other.ordinal >= 0) addresses.insert(other.pci);
      }
    const int gpus = std::max(most, static_cast<int>(addresses.size()));
    if (static_cast<int>(addresses.size()) < first.local_size)
      return str(first.local_size, " ranks share the ", gpus, gpus == 1 ? " GPU" : " GPUs", " of ",
                 host, ": start at most ", gpus, " there, or set run.device to cpu");
  }
  return {};
}

std::string line_of(const std::vector<RankGpu>& ranks, std::size_t rank) {
  const RankGpu& r = ranks[rank];
  if (r.ordinal < 0) return str("rank ", rank, ": no GPU of the ", r.visible, " of ", r.host);
  return str("rank ", rank, ": GPU ", r.ordinal, " (", r.pci, ") of ", r.host);
}

}  // namespace tilefold
