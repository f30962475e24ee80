// Gradients summed over ranks while backward still runs: ready(layer) as backward leaves a layer,
// finish() before the update. Buckets are fixed when made (from the last layer to the first, as
// backward goes, of about `bucket_bytes`) and start in that order on every rank, whatever the order
// of ready(). ready() and finish() allocate nothing. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "base/tensor.h"
#include "comm/communicator.h"

namespace tilefold {

class GradientReducer {
 public:
  struct Layer {
    std::vector<Tensor> grads;  // dense, f32 or f64
  };
  // What finish() leaves: every rank the whole sum, or each rank the sum in its own part of every
  // gradient (Communicator::start_scatter; REQUIRES: the ranks divide each gradient's size).
  enum class Result { whole, parts };
  // layers in forward order; gradients that follow each other in memory within a bucket are reduced
  // as one range. The communicator and the gradients outlive the reducer.
  GradientReducer(Communicator& comm, const std::vector<Layer>& layers,
                  std::int64_t bucket_bytes = 25 << 20, Result result = Result::whole);
  // Backward is done with this layer's gradients for this step. Each layer once between finishes.
  void ready(int layer);
  // All layers are summed on return. REQUIRES: every layer was ready.
  void finish();

  // What a step reduces: the figures of the time model in src/comm/README.md.
  std::int64_t bytes() const;
  int buckets() const { return static_cast<int>(buckets_.size()); }

 private:
  struct Bucket {
    std::vector<Tensor> ranges;  // [elements] each
    int layers = 0;              // that have gradients in it
    int waiting = 0;             // of them, not ready yet
  };
  Communicator& comm_;
  Result result_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<int>> buckets_of_layer_;
  std::vector<bool> is_ready_;  // [layers]
  std::size_t started_ = 0;     // buckets, in order
};

}  // namespace tilefold
