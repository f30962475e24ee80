#include "trainer/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"

namespace tilefold {

Sampler::Sampler(const SamplingOptions& options, std::int64_t vocab)
    : options_(options),
      order_(static_cast<std::size_t>(vocab)),
      weights_(static_cast<std::size_t>(vocab)) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    throw UsageError(
        str("temperature is ", options.temperature, "; allowed: 0 (greedy) and above"));
  if (options.top_k < 0)
    throw UsageError(str("top-k is ", options.top_k, "; allowed: 0 (all tokens) and above"));
}

void refuse_nan(std::int64_t token, std::int64_t n) {
  throw Error(
      str("the logit of token ", token, " at position ", n, " is NaN: the weights are damaged"));
}

namespace {

// The first of the largest. REQUIRES: not empty, no NaN. By blocks, so that the search for the
// maximum is a loop without branches.
std::int32_t first_of_largest(std::span<const float> logits) {
  constexpr std::size_t kBlock = 512, kLanes = 16;
  std::size_t best = 0;
  float top = -INFINITY;
  for (std::size_t start = 0; start < logits.size(); start += kBlock) {
    const auto block = logits.subspan(start, std::min(kBlock, logits.size() - start));
    float lanes[kLanes];
    std::fill(std::begin(lanes), std::end(lanes), block[0]);
    std::size_t i = 0;
    for (; i + kLanes <= block.size(); i += kLanes)
      for (std::size_t j = 0; j < kLanes; ++j)
        lanes[j] = block[i + j] > lanes[j] ? block[i + j] : lanes[j];
    for (; i < block.size(); ++i) lanes[0] = std::max(lanes[0], block[i]);
    const float most = *std::max_element(std::begin(lanes), std::end(lanes));
    if (start > 0 && !(most > top)) continue;
    top = most;
    best = start;
  }
  return static_cast<std::int32_t>(
      std::find(logits.begin() + static_cast<std::ptrdiff_t>(best), logits.end(), top) -
      logits.begin());
}

}  // namespace

std::int32_t Sampler::operator()(std::span<const float> logits, std::int64_t usable,
                                 std::int64_t n) {
  const auto count = static_cast<std::size_t>(usable);
  expect(usable >= 1 && count <= logits.size() && count <= order_.size(), "logits of another size");
  const auto z = logits.first(count);
  std::size_t bad = 0;
  for (const float x : z) bad += std::isnan(x) ? 1 : 0;
  if (bad > 0) {
    const auto first = std::find_if(z.begin(), z.end(), [](float x) { return std::isnan(x); });
    refuse_nan(first - z.begin(), n);
  }
  const std::int32_t likeliest = first_of_largest(z);
  if (options_.temperature == 0) return likeliest;

  std::iota(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(count), 0);
  std::size_t kept = count;
  if (options_.top_k > 0 && options_.top_k < usable) {
    kept = static_cast<std::size_t>(options_.top_k);
    const auto begin = order_.begin();
    std::partial_sort(begin, begin + static_cast<std::ptrdiff_t>(kept),
                      begin + static_cast<std::ptrdiff_t>(count),
                      [&](std::int32_t a, std::int32_t b) {
                        const float za = z[static_cast<std::size_t>(a)];
                        const float zb = z[static_cast<std::size_t>(b)];
                        return za != zb ? za > zb : a < b;  // ties go to the smaller id
                      });
  }
  const float largest = z[static_cast<std::size_t>(likeliest)];
  // Below the least that float32 can invert, colder makes no difference.
  const auto inverse = static_cast<float>(
      std::min<double>(1 / options_.temperature, std::numeric_limits<float>::max()));
  double sum = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    const float x = z[static_cast<std::size_t>(order_[i])];
    sum += weights_[i] = static_cast<double>(std::exp((x - largest) * inverse));
  }
  const Philox::Words words = Philox::random(
      options_.seed,
      {static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n >> 32), 0x67656e72u, 0});
  const double u = (words[0] * 4294967296.0 + words[1]) * 0x1p-64 * sum;
  double reached = 0;
  for (std::size_t i = 0; i < kept; ++i)
    if ((reached += weights_[i]) > u) return order_[i];
  return order_[kept - 1];
}

}  // namespace tilefold
