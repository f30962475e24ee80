#include "comm/launcher.h"

#include <map>
#include <string>

#include "base/error.h"
#include "tests/catch.h"

namespace tilefold {
namespace {

Launch detect(const std::map<std::string, std::string>& environment) {
  return detect_launch([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST_CASE("without a launcher there is one rank") {
  CHECK(detect({}).size == 1);
  CHECK(detect({}).variable.empty());
}

TEST_CASE("launchers are recognized by their variables") {
  CHECK(detect({{"OMPI_COMM_WORLD_SIZE", "4"}}).size == 4);
  CHECK(detect({{"OMPI_COMM_WORLD_SIZE", "4"}}).variable == "OMPI_COMM_WORLD_SIZE");
  CHECK(detect({{"PMI_SIZE", "8"}}).size == 8);
  CHECK(detect({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "16"}}).size == 16);
}

TEST_CASE("a batch script of Slurm is one process, whatever its allocation") {
  CHECK(detect({{"SLURM_NTASKS", "16"}, {"SLURM_PROCID", "0"}}).size == 1);
  CHECK(detect({{"SLURM_STEP_NUM_TASKS", "16"}}).size == 1);
}

TEST_CASE("mpirun inside a Slurm step counts by itself") {
  CHECK(
      detect({{"OMPI_COMM_WORLD_SIZE", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}})
          .size == 2);
}

TEST_CASE("a size that is no number is an error that names the variable") {
  for (const char* bad : {"", "0", "-2", "2x", "two", "99999999999"}) {
    CAPTURE(bad);
    CHECK_THROWS_WITH(detect({{"PMI_SIZE", bad}}),
                      str("the launcher's variable PMI_SIZE is '", bad,
                          "', not a number of ranks; unset it to run one rank"));
  }
}

}  // namespace
}  // namespace tilefold
