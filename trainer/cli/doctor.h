// `tilefold doctor`: what this machine, this build and this launch offer, and what is wrong with
// them, one sentence with a remedy each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/cli/doctor_gpus.h"

namespace CLI {
class App;
}

namespace tilefold {

// Exit status 1 (an Error) if a fault was found. Under a launcher all ranks are shown by rank 0.
void add_doctor_command(CLI::App& app);

// What one rank sees. Plain bytes, so that ranks can exchange it.
struct RankFacts {
  char host[64] = {};
  int local_rank = 0, local_size = 1;
  int host_cores = 1;                  // online
  int allowed_cores = 1;               // of them, those that this process may run on
  std::int64_t memory_bytes = 0;       // of the host
  std::int64_t available_bytes = 0;    // now
  std::int64_t limit_bytes = 0;        // what the container (cgroup) still allows; 0: no limit
  std::int64_t shared_free_bytes = 0;  // /dev/shm
  bool multiplies_right = true;        // a product of small whole numbers came out exactly
  bool folder_writable = true;
};

struct Finding {
  bool fault = false;  // else worth knowing
  std::string text;    // one sentence, with the remedy
};

// What follows from the facts; ranks in order.
std::vector<Finding> examine(const std::vector<RankFacts>& ranks);
std::vector<Finding> examine_gpus(const std::vector<GpuFacts>& ranks,
                                  const std::vector<GpuSums>& sums);

}  // namespace tilefold
