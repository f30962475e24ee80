#include "trainer/run_directory.h"

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "io/atomic_file.h"

namespace tilefold {

namespace fs = std::filesystem;

std::string RunDirectory::checkpoint(std::int64_t step) const {
  char name[40];
  std::snprintf(name, sizeof name, "/step-%08lld.h5", static_cast<long long>(step));
  return checkpoints() + name;
}

bool RunDirectory::occupied() const {
  std::error_code ignored;
  require(!fs::exists(out_, ignored) || fs::is_directory(out_, ignored), "run.out: ", out_,
          " is there and no directory");
  return fs::exists(config(), ignored) || fs::exists(metrics(), ignored) ||
         (fs::is_directory(checkpoints(), ignored) && !list_checkpoints(checkpoints()).empty());
}

void RunDirectory::refuse_if_occupied() const {
  if (occupied())
    throw UsageError(str("run.out: ", out_,
                         " already holds a run; --resume continues it, --overwrite starts it anew, "
                         "or choose another run.name or run.out"));
}

void RunDirectory::remove_run() const {
  std::vector<std::string> files = list_checkpoints(checkpoints());
  for (const std::string& file : {config(), metrics(), memory()}) files.push_back(file);
  for (const std::string& file : files) {
    std::error_code error;
    fs::remove(file, error);
    require(!error, "--overwrite: ", file, " cannot be removed: ", error.message());
  }
}

std::unique_ptr<DirectoryLock> RunDirectory::take(ExistingRun existing) const {
  std::error_code error;
  if (existing == ExistingRun::refuse) refuse_if_occupied();  // before anything is made
  fs::create_directories(checkpoints(), error);
  require(!error, "run.out: ", checkpoints(), " cannot be made: ", error.message());
  auto lock = std::make_unique<DirectoryLock>(checkpoints());
  if (existing == ExistingRun::refuse) refuse_if_occupied();  // another run may have come and gone
  if (existing == ExistingRun::overwrite) remove_run();
  for (const std::string& directory : {out_, checkpoints()}) remove_temporaries(directory);
  return lock;
}

}  // namespace tilefold
