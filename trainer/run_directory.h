// Where a run writes: OUT/config.yaml, OUT/metrics.jsonl, OUT/memory.json, OUT/checkpoints/.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

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

  // Does a run lie there already?
  bool occupied() const;
  // Makes the directory. An existing run is refused (UsageError naming the two options), kept, or
  // has its files removed, and nothing else in the directory.
  void prepare(ExistingRun existing) const;

 private:
  std::string out_;
};

}  // namespace tilefold
