// What the doctor concludes from planted facts, and its command on this machine.
#include "trainer/cli/doctor.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>

#include "tests/catch.h"

namespace tilefold {
namespace {

std::vector<RankFacts> healthy(int ranks) {
  std::vector<RankFacts> all(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    RankFacts& facts = all[static_cast<std::size_t>(rank)];
    std::strcpy(facts.host, "node7");
    facts.local_rank = rank;
    facts.local_size = ranks;
    facts.host_cores = facts.allowed_cores = 8;
    facts.memory_bytes = 64'000'000'000;
    facts.available_bytes = 60'000'000'000;
    facts.shared_free_bytes = 30'000'000'000;
  }
  return all;
}

TEST_CASE("a healthy machine gives no finding") {
  CHECK(examine(healthy(1)).empty());
  CHECK(examine(healthy(8)).empty());
}

TEST_CASE("each ill is found once, with a remedy") {
  struct Ill {
    int ranks;
    void (*plant)(RankFacts&);
    bool fault;
    const char* says;
    const char* remedy;
  };
  const Ill ills[] = {
      {16, [](RankFacts&) {}, true, "16 ranks share the 8 cores of node7", "at most 8"},
      {2, [](RankFacts& f) { f.allowed_cores = 1; }, false, "1 of 8 cores", "--bind-to none"},
      {4, [](RankFacts& f) { f.shared_free_bytes = 64 << 20; }, true, "64 MiB free", "--shm-size"},
      {1, [](RankFacts& f) { f.limit_bytes = 2'000'000'000; }, false, "2.00 GB", "memory.limit"},
      {1, [](RankFacts& f) { f.folder_writable = false; }, false, "cannot be written", "run.out"},
      {1, [](RankFacts& f) { f.multiplies_right = false; }, true, "products come out wrong",
       "OPENBLAS_CORETYPE"},
  };
  for (const Ill& ill : ills) {
    CAPTURE(ill.says);
    std::vector<RankFacts> ranks = healthy(ill.ranks);
    for (RankFacts& facts : ranks) ill.plant(facts);
    const std::vector<Finding> found = examine(ranks);
    REQUIRE(found.size() == 1);
    CHECK(found[0].fault == ill.fault);
    CHECK(found[0].text.find(ill.says) != std::string::npos);
    CHECK(found[0].text.find(ill.remedy) != std::string::npos);
    CHECK(found[0].text.find('\n') == std::string::npos);
  }
}

TEST_CASE("faults come before notes") {
  std::vector<RankFacts> ranks = healthy(1);
  ranks[0].folder_writable = false;
  ranks[0].multiplies_right = false;
  const std::vector<Finding> found = examine(ranks);
  REQUIRE(found.size() == 2);
  CHECK(found[0].fault);
  CHECK(!found[1].fault);
}

TEST_CASE("one bound rank of a large machine is not ill") {
  std::vector<RankFacts> ranks = healthy(1);
  ranks[0].allowed_cores = 2;
  CHECK(examine(ranks).empty());
}

std::vector<GpuFacts> healthy_gpus(int ranks) {
  std::vector<GpuFacts> all(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    GpuFacts& facts = all[static_cast<std::size_t>(rank)];
    std::strcpy(facts.map.host, "node7");
    std::snprintf(facts.map.pci, sizeof facts.map.pci, "0000:%02x:00.0", rank);
    facts.map.local_rank = facts.map.ordinal = rank;
    facts.map.local_size = facts.map.visible = ranks;
    facts.memory_bytes = 141'000'000'000;
    facts.free_bytes = 140'000'000'000;
  }
  return all;
}

TEST_CASE("ills of GPUs are found once, with a remedy") {
  struct Ill {
    void (*plant)(std::vector<GpuFacts>&, std::vector<GpuSums>&);
    bool fault;
    const char* says;
  };
  const Ill ills[] = {
      {[](auto& gpus, auto&) {
         gpus[1].map.ordinal = -1;
         gpus[0].map.visible = gpus[1].map.visible = 1;
       },
       true, "2 ranks share the 1 GPU of node7: start at most 1"},
      {[](auto&, auto& sums) { sums[0].measured = sums[1].measured = false; }, true, "no NCCL"},
      {[](auto& gpus, auto&) { gpus[1].free_bytes = 1'000'000'000; }, false,
       "1.00 GB of 141.00 GB free"},
      {[](auto&, auto& sums) { sums[1].right = false; }, true, "wrong on rank 1"},
      {[](auto&, auto& sums) { sums[0].large_bus = 5e9; }, false, "run at 5.00 GB/s"},
  };
  const GpuSums good{.measured = true, .small_bus = 2e11, .large_bus = 3e11, .large_bytes = 1 << 30};
  CHECK(examine_gpus(healthy_gpus(2), {good, good}).empty());
  CHECK(examine_gpus(healthy_gpus(1), {GpuSums()}).empty());
  CHECK(examine_gpus({GpuFacts()}, {GpuSums()}).empty());
  for (const Ill& ill : ills) {
    CAPTURE(ill.says);
    std::vector<GpuFacts> gpus = healthy_gpus(2);
    std::vector<GpuSums> sums{good, good};
    ill.plant(gpus, sums);
    const std::vector<Finding> found = examine_gpus(gpus, sums);
    REQUIRE(found.size() == 1);
    CHECK(found[0].fault == ill.fault);
    CHECK(found[0].text.find(ill.says) != std::string::npos);
    CHECK(found[0].text.find(':') != std::string::npos);
  }
}

TEST_CASE("the command runs on this machine") {
  CLI::App app;
  add_doctor_command(app);
  const char* arguments[] = {"tilefold", "doctor"};
  CHECK_NOTHROW(app.parse(2, arguments));
}

}  // namespace
}  // namespace tilefold
