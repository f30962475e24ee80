#include "trainer/schedule.h"

#include <cmath>

#include "tests/catch.h"

namespace tilefold {
namespace {

TrainConfig schedule(std::int64_t steps, std::int64_t warmup, double lr = 6e-4,
                     double min_lr = 6e-5) {
  TrainConfig train;
  train.steps = steps;
  train.warmup_steps = warmup;
  train.lr = lr;
  train.min_lr = min_lr;
  return train;
}

TEST_CASE("the first step has peak / warm-up, the peak is reached, the last step has the least") {
  const TrainConfig train = schedule(20000, 2000);
  CHECK(learning_rate(train, 0) == Approx(3.0e-7).epsilon(1e-12));
  CHECK(learning_rate(train, 999) == Approx(3.0e-4).epsilon(1e-12));
  CHECK(learning_rate(train, 1999) == 6e-4);
  CHECK(learning_rate(train, 2000) < 6e-4);
  CHECK(learning_rate(train, 19999) == 6e-5);
  CHECK(learning_rate(train, 30000) == 6e-5);
  // Half way down the cosine: 1999 + 9000.
  CHECK(learning_rate(train, 10999) == Approx(3.3e-4).epsilon(1e-12));
}

TEST_CASE("any warm-up and length: finite, above 0, within bounds, one peak") {
  for (const std::int64_t steps : {1, 2, 3, 10, 100})
    for (const std::int64_t warmup : {0, 1, 2, 3, 9, 10, 100, 200}) {
      const TrainConfig train = schedule(steps, warmup);
      std::int64_t peak = -1;
      for (std::int64_t step = 0; step < steps; ++step) {
        const double rate = learning_rate(train, step);
        INFO("steps " << steps << " warm-up " << warmup << " step " << step);
        CHECK(std::isfinite(rate));
        CHECK(rate > 0);
        CHECK(rate <= 6e-4);
        if (rate == 6e-4) peak = peak < 0 ? step : steps;
      }
      if (warmup <= steps) CHECK(peak == std::max<std::int64_t>(warmup, 1) - 1);
      if (warmup < steps && steps > 1) CHECK(learning_rate(train, steps - 1) == 6e-5);
    }
}

TEST_CASE("no decay, and a least rate of 0") {
  const TrainConfig flat = schedule(50, 10, 1e-3, 1e-3);
  for (std::int64_t step = 9; step < 50; ++step) CHECK(learning_rate(flat, step) == 1e-3);
  CHECK(learning_rate(schedule(50, 10, 1e-3, 0), 49) == 0);
}

}  // namespace
}  // namespace tilefold
