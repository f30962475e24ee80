// Gradients summed over ranks while backward still runs: ready(layer) as backward leaves a layer,
// finish() before the update. Buckets are fixed when made (declaration order, backwards, of about
// `bucket_bytes`), so sums do not depend on timing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "comm/communicator.h"

namespace tilefold {

class GradientReducer {
 public:
  struct Layer {
    std::vector<Tensor> grads;  // dense, f32 or f64
  };
  // layers in forward order; gradients of one layer that follow each other in memory are reduced as
  // one range.
  GradientReducer(Communicator& comm, std::vector<Layer> layers,
                  std::int64_t bucket_bytes = 25 << 20);
  // Backward is done with this layer's gradients for this step. Each layer once between finishes.
  void ready(int layer);
  // All layers are summed on return. REQUIRES: every layer was ready.
  void finish();

 private:
  struct Bucket {
    std::vector<Tensor> ranges;
    std::vector<int> layers;
    int waiting = 0;
  };
  Communicator& comm_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<int>> buckets_of_layer_;
  int started_ = 0;
};

}  // namespace tilefold
