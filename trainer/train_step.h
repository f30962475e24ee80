// One optimizer step: micro-batches forward and backward, gradients summed over ranks, the update.
//
//   loss      = sum of losses / n         n: target tokens of the whole global batch, over
//   gradient  = sum of gradients / n         micro-batches and ranks, counted before backward
//
// Allocates nothing once constructed. Every rank calls it alike.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "comm/reducer.h"
#include "trainer/data/batch_loader.h"
#include "trainer/host_batch.h"
#include "trainer/run_plan.h"

namespace tilefold {

struct StepResult {
  double loss = 0;       // of the global batch, natural log a target token
  double grad_norm = 0;  // of the mean gradient, before clipping
  double lr = 0;
  std::int64_t targets = 0;  // of the global batch
  // A step whose loss or norm is not finite has changed nothing.
  bool finite() const;
};

class TrainStep {
 public:
  // `run` is a training plan, `arena` its arenas with weights in them; all outlive this.
  TrainStep(const Config& config, Communicator& comm, const Dataset& data, const RunPlan& run,
            Arena& arena, Context ctx, std::int64_t consumed);

  // Step number `step`, counted from 0.
  StepResult operator()(std::int64_t step);
  // Samples seen by finished steps: the position in the data.
  std::int64_t consumed() const { return loader_.consumed(); }

 private:
  void zero_gradients();
  void backward_of_global_batch(StepState& state);
  void update();

  const Config& config_;
  Communicator& comm_;
  const RunPlan& run_;
  Arena& arena_;
  Context ctx_;
  BatchLoader loader_;
  HostBatch host_;
  std::vector<ConstTensor> grads_;
  std::vector<AdamWParameter> parameters_;
  GradientReducer reducer_;
};

}  // namespace tilefold
