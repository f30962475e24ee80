// The map from ranks to GPUs, of planted hosts.
#include "comm/gpu_of_rank.h"

#include <cstdio>
#include <cstring>

#include "tests/catch.h"

namespace tilefold {
namespace {

// `ranks` ranks on one host with `gpus` GPUs, of which each sees all or one of its own.
void add_host(std::vector<RankGpu>& all, const char* name, int ranks, int gpus, bool own = false) {
  for (int local = 0; local < ranks; ++local) {
    RankGpu rank;
    std::strcpy(rank.host, name);
    rank.local_rank = local;
    rank.local_size = ranks;
    rank.visible = own ? 1 : gpus;
    const int gpu = gpus == 1 ? 0 : local;
    if (gpu < gpus) {
      rank.ordinal = own ? 0 : gpu;
      std::snprintf(rank.pci, sizeof rank.pci, "0000:%02x:00.0", 16 + gpu);
    }
    all.push_back(rank);
  }
}

std::string fault(int ranks, int gpus, bool own = false) {
  std::vector<RankGpu> all;
  add_host(all, "node7", ranks, gpus, own);
  return fault_of(all);
}

TEST_CASE("a GPU for each rank is no fault") {
  CHECK(fault(1, 1).empty());
  CHECK(fault(2, 8).empty());
  CHECK(fault(8, 8).empty());
}

TEST_CASE("each rank may see nothing but a GPU of its own") { CHECK(fault(4, 4, true).empty()); }

TEST_CASE("hosts count for themselves") {
  std::vector<RankGpu> all;
  add_host(all, "node7", 4, 4);
  add_host(all, "node8", 2, 2);
  CHECK(fault_of(all).empty());
  add_host(all, "node9", 3, 2);
  CHECK(fault_of(all).find("3 ranks share the 2 GPUs of node9: start at most 2 there") == 0);
}

TEST_CASE("more ranks than GPUs are refused") {
  CHECK(fault(3, 2).find("3 ranks share the 2 GPUs of node7: start at most 2") == 0);
  CHECK(fault(2, 1).find("2 ranks share the 1 GPU of node7: start at most 1") == 0);
}

TEST_CASE("a rank without a GPU among others is refused") {
  std::vector<RankGpu> all;
  add_host(all, "node7", 2, 2);
  add_host(all, "node8", 1, 0);
  CHECK(fault_of(all).find("rank 2 on node8 sees no GPU") == 0);
}

TEST_CASE("a line tells the address") {
  std::vector<RankGpu> all;
  add_host(all, "node7", 2, 2);
  CHECK(line_of(all, 1) == "rank 1: GPU 1 (0000:11:00.0) of node7");
}

}  // namespace
}  // namespace tilefold
