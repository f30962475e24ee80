#include "base/host_memory.h"

#include <filesystem>
#include <fstream>
#include <map>

#include "tests/catch.h"
#include "tests/temporary_directory.h"

using namespace tilefold;

namespace {

// A root directory with these files.
class Root {
 public:
  explicit Root(const std::map<std::string, std::string>& files) {
    for (const auto& [name, text] : files) {
      std::filesystem::create_directories(
          std::filesystem::path(at_.directory() + name).parent_path());
      std::ofstream(at_.directory() + name) << text;
    }
  }
  HostMemory memory() const { return host_memory(at_.directory()); }

 private:
  TemporaryDirectory at_;
};

const std::string kMeminfo =
    "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:   8000000 kB\n";

}  // namespace

TEST_CASE("this host has memory, and not more available than there is") {
  const HostMemory memory = host_memory();
  CHECK(memory.total > 0);
  CHECK(memory.usable() > 0);
  CHECK(memory.usable() <= memory.usable_total());
}

TEST_CASE("without control groups, or without limits in them, the host's memory counts") {
  for (const Root& root :
       {Root({{"/proc/meminfo", kMeminfo}}),
        Root({{"/proc/meminfo", kMeminfo},
              {"/proc/self/cgroup", "0::/a/b\n"},
              {"/sys/fs/cgroup/a/b/memory.max", "max\n"}}),
        Root({{"/proc/meminfo", kMeminfo},
              {"/proc/self/cgroup", "4:memory:/x\n"},
              {"/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n"}})}) {
    CHECK(root.memory().container_total == 0);
    CHECK(root.memory().usable() == 8000000ll * 1024);
    CHECK(root.memory().usable_total() == 16000000ll * 1024);
  }
  CHECK(host_memory("/nonexistent").usable() == 0);
}

TEST_CASE("the tightest group above the process counts, less what it uses and cannot give back") {
  const Root root({{"/proc/meminfo", kMeminfo},
                   {"/proc/self/cgroup", "0::/a/b/c\n"},
                   {"/sys/fs/cgroup/a/memory.max", "2000000000\n"},
                   {"/sys/fs/cgroup/a/memory.current", "1500000000\n"},
                   {"/sys/fs/cgroup/a/memory.stat", "anon 900000000\ninactive_file 600000000\n"},
                   {"/sys/fs/cgroup/a/b/memory.max", "1800000000\n"},
                   {"/sys/fs/cgroup/a/b/memory.current", "100000000\n"},
                   {"/sys/fs/cgroup/a/b/c/memory.max", "max\n"}});
  CHECK(root.memory().container_available == 1100000000);
  CHECK(root.memory().container_total == 1800000000);
  CHECK(root.memory().usable() == 1100000000);
  CHECK(root.memory().usable_total() == 1800000000);
}

TEST_CASE("a container sees its own group at the mount: versions 2 and 1") {
  const Root two({{"/proc/meminfo", kMeminfo},
                  {"/proc/self/cgroup", "0::/\n"},
                  {"/sys/fs/cgroup/memory.max", "1000000000\n"},
                  {"/sys/fs/cgroup/memory.current", "5000000000\n"}});
  CHECK(two.memory().usable() == 1);  // over its limit
  const Root one(
      {{"/proc/meminfo", kMeminfo},
       {"/proc/self/cgroup", "9:cpuset:/docker/f00\n4:hugetlb,memory:/docker/f00\n0::/\n"},
       {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000000\n"},
       {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "400000000\n"},
       {"/sys/fs/cgroup/memory/memory.stat", "inactive_file 5\ntotal_inactive_file 100000000\n"}});
  CHECK(one.memory().usable() == 700000000);
}
