// What changes from step to step, in one struct in device memory: written by the host between steps
// and micro-batches, only read by ops, so that a recorded step can be replayed.
#pragma once

#include <cstdint>

namespace tilefold {

struct StepState {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;           // 0-based optimizer step
  std::int64_t first_sample = 0;    // global-batch index of this micro-batch's first sample
  double target_tokens = 0;         // of the whole global batch, over micro-batches and ranks
  double learning_rate = 0;
  double bias_correction1 = 1;      // 1 - beta1^(step + 1)
  double bias_correction2 = 1;      // 1 - beta2^(step + 1)
};

}  // namespace tilefold
