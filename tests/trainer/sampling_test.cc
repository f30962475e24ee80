// Draws from logits: the contract of trainer/sampling.h.
#include "trainer/sampling.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "tests/catch.h"

namespace tilefold {
namespace {

// [vocab], with ties at the top and a larger one among the padding at the end.
std::vector<float> logits_of(std::int64_t vocab) {
  std::vector<float> z(static_cast<std::size_t>(vocab));
  for (std::size_t i = 0; i < z.size(); ++i) z[i] = std::sin(static_cast<float>(i * i)) - 3;
  z[z.size() / 2] = z[z.size() / 2 + 1] = 2;
  z.back() = 9;
  return z;
}

TEST_CASE("greedy is the first of the largest usable, and so is the coldest draw or the best one") {
  for (const std::int64_t vocab : {5, 64, 513, 1537, 50304}) {
    const std::vector<float> z = logits_of(vocab);
    const auto best = static_cast<std::int32_t>(vocab / 2);
    CHECK(Sampler({.temperature = 0}, vocab)(z, vocab - 1, 0) == best);
    for (int n = 0; n < 20; ++n) {
      CHECK(Sampler({.top_k = 1}, vocab)(z, vocab - 1, n) == best);
      for (const double cold : {1e-3, 1e-40, std::numeric_limits<double>::denorm_min()}) {
        const std::int32_t drawn = Sampler({.temperature = cold}, vocab)(z, vocab - 1, n);
        CHECK((drawn == best || drawn == best + 1));
      }
    }
  }
}

TEST_CASE("draws have the frequencies of the softmax, over the kept tokens") {
  const std::vector<float> z{1, 0, 2, -INFINITY, 1.5f, 7};
  constexpr std::int64_t kDraws = 20000, kUsable = 5;
  for (const std::int64_t top_k : {0, 3}) {
    for (const double temperature : {0.5, 1.0, 4.0}) {
      Sampler sampler({.temperature = temperature, .top_k = top_k, .seed = 7}, 6);
      std::vector<double> expected(6), drawn(6);
      double sum = 0;
      for (int v = 0; v < kUsable; ++v) {
        if (top_k == 3 && z[v] < 1) continue;
        sum += expected[v] = std::exp(z[v] / temperature);
      }
      for (std::int64_t n = 0; n < kDraws; ++n) drawn[sampler(z, kUsable, n)] += 1.0 / kDraws;
      for (int v = 0; v < 6; ++v) {  // four standard deviations
        const double p = expected[v] / sum;
        CHECK(std::abs(drawn[v] - p) <= 4 * std::sqrt(p * (1 - p) / kDraws));
      }
    }
  }
}

TEST_CASE("a damaged logit is named") {
  std::vector<float> z = logits_of(600);
  z[400] = std::numeric_limits<float>::quiet_NaN();
  try {
    Sampler({}, 600)(z, 599, 3);
    FAIL("drew from NaN");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("token 400 at position 3 is NaN") != std::string::npos);
  }
  CHECK_NOTHROW(Sampler({}, 600)(z, 400, 3));
}

}  // namespace
}  // namespace tilefold
