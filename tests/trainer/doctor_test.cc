// What the doctor concludes from planted facts, and its command on this machine.
#include "trainer/cli/doctor.h"

#include <CLI/CLI.hpp>
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

TEST_CASE("the command runs on this machine") {
  CLI::App app;
  add_doctor_command(app);
  const char* arguments[] = {"tilefold", "doctor"};
  CHECK_NOTHROW(app.parse(2, arguments));
}

}  // namespace
}  // namespace tilefold
