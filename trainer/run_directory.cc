#include "trainer/run_directory.h"

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "io/checkpoint_file.h"

namespace tilefold {

namespace fs = std::filesystem;

std::string RunDirectory::checkpoint(std::int64_t step) const {
  char name[40];
  std::snprintf(name, sizeof name, "/step-%08lld.h5", static_cast<long long>(step));
  return checkpoints() + name;
}

bool RunDirectory::occupied() const {
  std::error_code ignored;
  return fs::exists(config(), ignored) || fs::exists(metrics(), ignored) ||
         !list_checkpoints(checkpoints()).empty();
}

void RunDirectory::prepare(ExistingRun existing) const {
  if (existing == ExistingRun::refuse && occupied())
    throw UsageError(str("run.out: ", out_,
                         " already holds a run; --resume continues it, --overwrite starts it anew, "
                         "or choose another run.name or run.out"));
  std::error_code error;
  if (existing == ExistingRun::overwrite) {
    for (const std::string& file : {config(), metrics(), memory()}) fs::remove(file, error);
    if (fs::is_directory(checkpoints(), error))
      for (const auto& entry : fs::directory_iterator(checkpoints(), error))
        if (entry.path().filename().string().starts_with("step-")) fs::remove(entry.path(), error);
  }
  fs::create_directories(checkpoints(), error);
  require(!error, "run.out: ", checkpoints(), " cannot be made: ", error.message());
}

}  // namespace tilefold
