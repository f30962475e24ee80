#include "trainer/report/resident.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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
    if (name == "RssAnon:" && status >> kib) found.anonymous = kib * 1024;
    std::getline(status, name);
  }
  found.peak = std::max(found.peak, found.now);  // counted in batches, the peak may lag
  return found;
}

std::int64_t resident_bytes(std::span<const std::byte> memory) {
  if (memory.empty()) return 0;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  constexpr std::size_t kPages = 4096;  // looked at at a time
  std::array<unsigned char, kPages> resident;
  std::int64_t bytes = 0;
  for (std::size_t at = 0; at < memory.size(); at += kPages * page) {
    const std::size_t length = std::min(memory.size() - at, kPages * page);
    void* from = const_cast<std::byte*>(memory.data()) + at;
    if (mincore(from, length, resident.data()) != 0) return -1;
    const auto end = resident.begin() + static_cast<std::ptrdiff_t>((length + page - 1) / page);
    bytes += std::count_if(resident.begin(), end, [](unsigned char r) { return (r & 1) != 0; }) *
             static_cast<std::int64_t>(page);
  }
  return bytes;
}

}  // namespace tilefold
