// OUT/metrics.jsonl: one JSON object a line, written at once, so that a run can be watched and a
// killed one loses nothing.
//
//   {"step":1,"loss":..,"lr":..,"grad_norm":..,"tokens":..,"tokens_per_s":..,"ms":..}
//   {"step":50,"val_loss":..,"accuracy":..,"val_loss_by_position":[{"from":0,"to":0,"loss":..},..]}
//
// step: updates done so far (1 after the first); tokens: trained on so far. NaN and infinity are
// null. Allocates nothing after it was opened. Not thread-safe; only rank 0 has one.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "trainer/data/evaluation.h"

namespace tilefold {

struct StepMetrics {
  std::int64_t step = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  std::int64_t tokens = 0;
  double tokens_per_s = 0, ms = 0;
};

class MetricsFile {
 public:
  // keep_steps: lines of steps above it are cut, and so is a line that a killed run left unfinished
  // (0: a new file). keep_evaluations: the same for evaluations alone. Throws Error if the file
  // cannot be written.
  MetricsFile(const std::string& path, std::int64_t keep_steps,
              std::int64_t keep_evaluations = std::numeric_limits<std::int64_t>::max());
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void write(const StepMetrics& metrics);
  // accuracy is written if `task`.
  void write(std::int64_t step, const Evaluation& evaluation, bool task);

 private:
  void flush_line();

  std::string path_;
  std::string line_;
  int fd_ = -1;
};

}  // namespace tilefold
