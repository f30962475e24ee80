// One optimizer step: micro-batches forward and backward, gradients summed over ranks, the update.
//
//   loss      = sum of losses / n         n: target tokens of the whole global batch, over
//   gradient  = sum of gradients / n         micro-batches and ranks, counted before backward
//
// With parallel.shard_optimizer each rank gets the summed gradients of its part of every weight,
// updates that part, and all ranks gather the weights; the norm is summed over parts, so in another
// order.
//
// A step is queued (start) and its result read later (finish), so that a device that works on its
// own need not wait for the host between steps: the host reads files and queues one step while the
// one before runs. Allocates nothing once constructed. Every rank calls it alike.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
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

  // Queues step number `step`, counted from 0. REQUIRES: at most one other step was started and not
  // finished.
  void start(std::int64_t step);
  // Waits for the oldest step that was started and not finished.
  StepResult finish();
  // Samples seen by the steps that were started: the position in the data once all are finished.
  std::int64_t consumed() const { return loader_.consumed(); }

 private:
  // Memory that the device reads while the host goes on; filled again once `read`.
  struct Outgoing {
    HostBatch batch;
    std::unique_ptr<Memory> state;  // StepState
    std::unique_ptr<Event> read;
  };
  // A step under way.
  struct Pending {
    StepResult result;             // as far as the host knows it
    std::unique_ptr<Memory> sums;  // double[2]: this rank's loss; square sum, equal on all ranks
    std::unique_ptr<Event> done;
  };

  static Outgoing open_outgoing(const Config& config, const Communicator& comm, const Dataset& data,
                                Device& device);
  void own_part(AdamWParameter& parameter, const Tensor& grad, const Tensor& weight,
                const Communicator& comm);
  void zero_gradients();
  void backward_of_global_batch(StepState& state);
  void update();

  const Config& config_;
  Communicator& comm_;
  const RunPlan& run_;
  Arena& arena_;
  Context ctx_;
  BatchLoader loader_;
  std::array<Outgoing, 2> outgoing_;
  std::size_t next_outgoing_ = 0;
  std::array<Pending, 2> pending_;
  std::size_t started_ = 0, finished_ = 0;  // steps
  std::vector<Tensor> zeroed_;              // gradients, neighbours in memory as one
  std::vector<ConstTensor> grads_;
  std::vector<Tensor> gathered_;  // weights whose optimizer state ranks share out
  std::vector<AdamWParameter> parameters_;
  GradientReducer reducer_;
};

}  // namespace tilefold
