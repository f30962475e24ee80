#include "trainer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tilefold {

double learning_rate(const TrainConfig& train, std::int64_t step) {
  if (step < train.warmup_steps)
    return train.lr * static_cast<double>(step + 1) / static_cast<double>(train.warmup_steps);
  const std::int64_t peak = std::max<std::int64_t>(train.warmup_steps, 1) - 1;
  const std::int64_t last = train.steps - 1;
  if (step == peak) return train.lr;
  if (step >= last) return train.min_lr;
  const double done = static_cast<double>(step - peak) / static_cast<double>(last - peak);
  return train.min_lr + 0.5 * (train.lr - train.min_lr) * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace tilefold
