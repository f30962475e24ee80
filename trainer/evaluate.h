// Losses and accuracy over the validation split, shared out over the ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "trainer/data/evaluation.h"
#include "trainer/host_batch.h"
#include "trainer/run_plan.h"

namespace tilefold {

class Evaluator {
 public:
  // `run` has an eval phase of `batch` sequences; `arena` holds weights. All outlive this.
  // Allocates here, not in operator().
  Evaluator(Communicator& comm, const Dataset& data, const RunPlan& run, Arena& arena, Context ctx,
            std::int64_t batch);

  // Validation samples [0, samples); the same sums for every number of ranks, up to the rounding of
  // adding in another order. Every rank calls it alike and gets the whole result.
  Evaluation operator()(std::int64_t samples);

 private:
  Communicator& comm_;
  const Dataset& data_;
  const RunPlan& run_;
  Arena& arena_;
  Context ctx_;
  std::int64_t batch_;
  HostBatch host_;
  std::vector<float> losses_;              // [batch * context]
  std::vector<double> wide_losses_;        // [batch * context] where the model computes in f64
  std::vector<std::int32_t> predictions_;  // [batch * context]
};

}  // namespace tilefold
