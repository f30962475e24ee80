#include "trainer/flops.h"

#include "tests/catch.h"

namespace tilefold {
namespace {

TEST_CASE("flops a token: 6 a parameter; attention in full, and as far as it is visible") {
  ModelConfig model;
  model.layers = 3;
  model.width = 8;
  model.context = 5;
  const FlopsPerToken causal = flops_per_token(model, {}, 100);
  CHECK(causal.full == 600 + 12 * 3 * 8 * 5);
  CHECK(causal.visible == Approx(600 + 12 * 3 * 8 * 3.0));  // 15 pairs of 25
  const FlopsPerToken window = flops_per_token(model, {.window = {1, 0}}, 100);
  CHECK(window.full == causal.full);
  CHECK(window.visible == Approx(600 + 12 * 3 * 8 * 9.0 / 5));  // 1 + 2 + 2 + 2 + 2 pairs
}

}  // namespace
}  // namespace tilefold
