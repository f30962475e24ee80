// Where a run writes: OUT/config.yaml, OUT/metrics.jsonl, OUT/memory.json, OUT/checkpoints/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "io/checkpoint_file.h"

namespace tilefold {

enum class ExistingRun { refuse, resume, overwrite };

class RunDirectory {
 public:
  explicit RunDirectory(std::string out) : out_(std::move(out)) {}

  const std::string& path() const { return out_; }
  std::string config() const { return out_ + "/config.yaml"; }
  std::string metrics() const { return out_ + "/metrics.jsonl"; }
  std::string memory() const { return out_ + "/memory.json"; }
  std::string checkpoints() const { return out_ + "/checkpoints"; }
  std::string checkpoint(std::int64_t step) const;  // of the state after `step` updates

  // Makes the directory and takes the right to write in it, for as long as the result lives: Error
  // when another process has it. Then, and not before, an existing run is refused (UsageError
  // naming the two options), kept, or has its files removed, and nothing else in the directory;
  // what a process that died left half written is removed.
  std::unique_ptr<DirectoryLock> take(ExistingRun existing) const;

 private:
  bool occupied() const;  // does a run lie there already?
  void refuse_if_occupied() const;
  void remove_run() const;

  std::string out_;
};

}  // namespace tilefold
