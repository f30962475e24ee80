// Memory of this process as the system counts it (/proc/self/status).
#pragma once

#include <cstdint>

namespace tilefold {

struct ResidentMemory {
  std::int64_t now = -1;   // VmRSS, bytes; -1: the system does not say
  std::int64_t peak = -1;  // VmHWM: the largest VmRSS since the process started
};

ResidentMemory resident_memory();

}  // namespace tilefold
