#include "trainer/report/resident.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace tilefold {

ResidentMemory resident_memory() {
  ResidentMemory found;
  std::ifstream status("/proc/self/status");
  std::string name;
  std::int64_t kib = 0;
  while (status >> name) {
    if (name == "VmRSS:" && status >> kib) found.now = kib * 1024;
    if (name == "VmHWM:" && status >> kib) found.peak = kib * 1024;
    std::getline(status, name);
  }
  found.peak = std::max(found.peak, found.now);  // counted in batches, the peak may lag
  return found;
}

}  // namespace tilefold
