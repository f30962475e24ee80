#include "comm/launcher.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace tilefold {

Launch detect_launch(FunctionRef<const char*(const char* name)> get) {
  struct Source {
    const char* size;
    const char* evidence;  // must be set too
  };
  constexpr Source kSources[] = {
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_SIZE", "PMI_SIZE"},
      {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"},
  };
  for (const Source& source : kSources) {
    const char* value = get(source.size);
    if (value == nullptr || get(source.evidence) == nullptr) continue;
    Launch launch{.size = 0, .variable = source.size};
    const char* end = value + std::strlen(value);
    const auto [parsed, error] = std::from_chars(value, end, launch.size);
    require(error == std::errc() && parsed == end && launch.size >= 1, "the launcher's variable ",
            source.size, " is '", value, "', not a number of ranks; unset it to run one rank");
    return launch;
  }
  return {};
}

Launch detect_launch() {
  return detect_launch([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace tilefold
