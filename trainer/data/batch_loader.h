// From samples to micro-batches in the caller's arrays. Allocates nothing.
//
// Step t trains on the global batch of samples [consumed, consumed + global): row i of it is sample
// consumed + i whatever the number of ranks. Rank r of W takes rows [r global/W, (r+1) global/W)
// and works through them in micro-batches of `micro` rows. So every sample is seen once an epoch
// over all ranks, and a run resumed with another micro-batch or number of ranks goes on with the
// next sample.
#pragma once

#include <cstdint>
#include <span>

#include "trainer/data/dataset.h"

namespace tilefold {

// Host memory that a batch is written into. Sized for the largest micro-batch.
struct BatchArrays {
  std::span<std::int32_t> tokens;      // [samples * context]
  std::span<std::int32_t> targets;     // [samples * context], -1: not scored
  std::span<std::int32_t> positions;   // [samples * context]
  std::span<std::int64_t> cu_seqlens;  // [documents + 1], the most; unused unless packed
};

// What was written.
struct BatchInfo {
  std::int64_t samples = 0;
  std::int64_t first_sample = 0;  // row of the global batch (of the evaluation) that comes first
  std::int64_t targets = 0;       // scored tokens
  std::int64_t documents = 0;     // cu_seqlens[0 .. documents] are valid; 0: not packed
  std::int64_t max_document = 0;  // tokens of the longest document; context if not packed
};

// Samples first .. first + count - 1 of a split, row after row. `row` becomes first_sample.
// Documents: cu_seqlens is [0, end of the first document, ..., count * context]. Throws Error if
// the samples have more of them than cu_seqlens has room for: samples * Dataset::most_documents()
// are enough.
BatchInfo fill_batch(const Dataset& data, Split split, std::int64_t first, std::int64_t count,
                     std::int64_t row, const BatchArrays& out);

class BatchLoader {
 public:
  // REQUIRES: world divides global, micro divides global / world, 0 <= rank < world.
  BatchLoader(const Dataset& data, std::int64_t global, std::int64_t micro, int rank, int world,
              std::int64_t consumed = 0);

  std::int64_t micro_batches() const { return per_rank_ / micro_; }
  std::int64_t consumed() const { return consumed_; }

  // Targets of this rank's share of the coming step; summed over ranks, what its loss is divided
  // by.
  std::int64_t count_targets() const;
  // Micro-batch i of the coming step.
  BatchInfo fill(std::int64_t i, const BatchArrays& out) const;
  // The step is done.
  void advance() { consumed_ += global_; }

 private:
  const Dataset& data_;
  std::int64_t global_, per_rank_, micro_;
  std::int64_t first_row_;  // of this rank
  std::int64_t consumed_;
};

// This rank's share of an evaluation over validation samples [0, samples): consecutive ones, shares
// differ by at most one. The last batch may be smaller than `batch`, and a share may be empty.
class EvaluationLoader {
 public:
  EvaluationLoader(const Dataset& data, std::int64_t samples, std::int64_t batch, int rank,
                   int world);

  std::int64_t batches() const { return (end_ - begin_ + batch_ - 1) / batch_; }
  BatchInfo fill(std::int64_t i, const BatchArrays& out) const;

 private:
  const Dataset& data_;
  std::int64_t begin_, end_, batch_;
};

}  // namespace tilefold
