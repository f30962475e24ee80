#include "base/host_memory.h"

#include <fstream>
#include <string_view>

namespace tilefold {
namespace {

// The number behind `name` in lines of "name number"; 0 if it is not there.
std::int64_t field(const std::string& path, std::string_view name) {
  std::ifstream in(path);
  std::string word, rest;
  for (std::int64_t number; in >> word >> number; std::getline(in, rest))
    if (word == name) return number;
  return 0;
}

// A file of one number; 0 if it is not there or says "max".
std::int64_t number_in(const std::string& path) {
  std::int64_t number = 0;
  std::ifstream(path) >> number;
  return number;
}

// Names that the two versions of control groups give to the same things.
struct Names {
  const char *limit, *used, *reclaimable;
};
constexpr Names kVersion1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                             "total_inactive_file"};
constexpr Names kVersion2 = {"/memory.max", "/memory.current", "inactive_file"};

// The group `path` below `mount` and all groups above it. A container without a namespace of its
// own sees its group at the mount itself, under no such path: then only that one is found.
void tighten(HostMemory& memory, const std::string& mount, std::string path, const Names& names) {
  constexpr std::int64_t kNone = std::int64_t{1} << 60;  // version 1 says a huge number for none
  for (;;) {
    const std::string group = mount + (path == "/" ? "" : path);
    const std::int64_t limit = number_in(group + names.limit);
    if (limit > 0 && limit < kNone) {
      // File pages that nobody has used lately count as used, but are given back on demand.
      const std::int64_t used =
          number_in(group + names.used) - field(group + "/memory.stat", names.reclaimable);
      const std::int64_t left = std::clamp<std::int64_t>(limit - used, 1, limit);
      if (memory.container_total == 0 || left < memory.container_available)
        memory.container_available = left;
      memory.container_total =
          memory.container_total == 0 ? limit : std::min(memory.container_total, limit);
    }
    if (path.empty() || path == "/") return;
    path.erase(path.rfind('/'));
  }
}

}  // namespace

HostMemory host_memory(const std::string& root) {
  HostMemory memory;
  memory.total = 1024 * field(root + "/proc/meminfo", "MemTotal:");
  memory.available = 1024 * field(root + "/proc/meminfo", "MemAvailable:");
  std::ifstream own(root + "/proc/self/cgroup");  // lines of number:controllers:path
  for (std::string line; std::getline(own, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers(1, ',');
    controllers.append(line, first + 1, second - first - 1).push_back(',');
    const std::string path = line.substr(second + 1);
    if (!path.starts_with('/')) continue;
    if (controllers == ",,")
      tighten(memory, root + "/sys/fs/cgroup", path, kVersion2);
    else if (controllers.find(",memory,") != std::string::npos)
      tighten(memory, root + "/sys/fs/cgroup/memory", path, kVersion1);
  }
  return memory;
}

}  // namespace tilefold
