// The learning rate of each step: linear warm-up, then half a cosine.
//
//   step < warmup            lr (step + 1) / warmup
//   peak = max(warmup, 1) - 1, the first step with rate lr
//   peak <= step < steps     min_lr + (lr - min_lr) (1 + cos(pi (step - peak) / (steps - 1 -
//   peak))) / 2 step >= steps            min_lr
//
// step counts from 0. So the first step is above 0, lr is reached, and the last step has min_lr to
// the bit. Where warm-up fills the run (warmup >= steps) there is no decay: the last step has the
// warm-up's rate, lr if warmup == steps.
#pragma once

#include <cstdint>

#include "trainer/config.h"

namespace tilefold {

// REQUIRES: step >= 0. Never NaN; no division by zero for any warm-up or number of steps.
double learning_rate(const TrainConfig& train, std::int64_t step);

}  // namespace tilefold
