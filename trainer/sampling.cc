#include "trainer/sampling.h"

#include <algorithm>
#include <cmath>
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

std::int32_t Sampler::operator()(std::span<const float> logits, std::int64_t usable,
                                 std::int64_t n) {
  const auto count = static_cast<std::size_t>(usable);
  expect(usable >= 1 && count <= logits.size() && count <= order_.size(), "logits of another size");
  for (std::size_t v = 0; v < count; ++v)
    require(!std::isnan(logits[v]), "the logit of token ", v, " at position ", n,
            " is NaN: the weights are damaged");
  std::iota(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(count), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float za = logits[static_cast<std::size_t>(a)], zb = logits[static_cast<std::size_t>(b)];
    return za != zb ? za > zb : a < b;  // a total order: ties go to the smaller id
  };
  const auto begin = order_.begin(), end = begin + static_cast<std::ptrdiff_t>(count);
  if (options_.temperature == 0) return *std::min_element(begin, end, likelier);

  std::size_t kept = count;
  if (options_.top_k > 0) kept = std::min(count, static_cast<std::size_t>(options_.top_k));
  std::partial_sort(begin, begin + static_cast<std::ptrdiff_t>(kept), end, likelier);
  const double largest = logits[static_cast<std::size_t>(order_[0])];
  double sum = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    const double z = logits[static_cast<std::size_t>(order_[i])];
    sum += weights_[i] = std::exp((z - largest) / options_.temperature);
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
