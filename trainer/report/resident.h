// Memory of this process as the system counts it (/proc/self/status).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tilefold {

struct ResidentMemory {
  std::int64_t now = -1;        // VmRSS, bytes; -1: the system does not say
  std::int64_t peak = -1;       // VmHWM: the largest VmRSS since the process started
  std::int64_t anonymous = -1;  // RssAnon: of `now`, what is no file's
};

ResidentMemory resident_memory();

// Bytes of this memory that are resident, in whole pages; -1: the system does not say. REQUIRES: it
// begins at a page.
std::int64_t resident_bytes(std::span<const std::byte> memory);

}  // namespace tilefold
