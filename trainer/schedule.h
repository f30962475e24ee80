// The learning rate of each step: linear warm-up, then half a cosine.
//
//   step < warmup           lr (step + 1) / warmup
//   peak <= step < last     min_lr + (lr - min_lr) (1 + cos(pi (step - peak) / (last - peak))) / 2
//   step >= last            min_lr
//   peak = max(warmup, 1) - 1, the first step with rate lr      last = steps - 1
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
