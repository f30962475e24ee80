// What this host, and the container that the process runs in, have of memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace tilefold {

struct HostMemory {
  std::int64_t total = 0;      // bytes of the host; 0: the system does not say
  std::int64_t available = 0;  // of them, what could be used now without swapping
  // The tightest control group (version 1 or 2) that the process lies in; 0: no limit.
  std::int64_t container_total = 0;
  std::int64_t container_available = 0;  // what that one still allows, at least 1 where limited

  std::int64_t usable_total() const { return least(total, container_total); }
  std::int64_t usable() const { return least(available, container_available); }

 private:
  static std::int64_t least(std::int64_t host, std::int64_t container) {
    return container > 0 ? std::min(host, container) : host;
  }
};

// `root` stands before /proc and /sys, for tests. Thread-safe.
HostMemory host_memory(const std::string& root = "");

}  // namespace tilefold
