// Which elements dropout keeps.
#include "contract/dropout.h"

#include <cmath>
#include <set>

#include "tests/catch.h"

namespace tilefold {
namespace {

double kept_fraction(float p, std::uint32_t site, std::uint64_t sample, std::uint64_t step) {
  const std::uint64_t count = 40000;
  std::uint64_t kept = 0;
  for (std::uint64_t e = 0; e < count; e += 4)
    for (const std::uint32_t word : dropout_words(dropout_key(1, step), sample, site, e))
      kept += word >= dropout_threshold(p);
  return static_cast<double>(kept) / static_cast<double>(count);
}

TEST_CASE("dropout keeps 1 - p of the elements, within four deviations") {
  for (const float p : {0.1f, 0.5f, 0.9f}) {
    const double deviation =
        std::sqrt(static_cast<double>(p) * (1 - static_cast<double>(p)) / 40000);
    for (const std::uint32_t site : {0u, 7u, 65535u})
      REQUIRE(std::abs(kept_fraction(p, site, 3, 5) - (1 - static_cast<double>(p))) <
              4 * deviation);
  }
}

TEST_CASE("dropout's words differ by seed, step, site, sample and element, and repeat") {
  std::set<std::uint32_t> first;
  int calls = 0;
  for (const std::uint64_t seed : {1ull, 2ull})
    for (const std::uint64_t step : {0ull, 1ull})
      for (const std::uint32_t site : {0u, 1u})
        for (const std::uint64_t sample : {0ull, 1ull})
          for (const std::uint64_t e : {0ull, 4ull, 4ull << 32}) {
            const Philox::Words words = dropout_words(dropout_key(seed, step), sample, site, e);
            REQUIRE(words == dropout_words(dropout_key(seed, step), sample, site, e + 3));
            first.insert(words[0]);
            ++calls;
          }
  REQUIRE(static_cast<int>(first.size()) == calls);
}

TEST_CASE(
    "attention's words differ by head, query and key, and from one group of keys to the next") {
  std::set<std::uint32_t> first;
  int calls = 0;
  for (const std::uint32_t head : {0u, 1u})
    for (const std::uint64_t i : {0ull, 1ull, 70000ull})
      for (const std::uint64_t j : {0ull, 4ull, 70000ull}) {
        first.insert(attention_dropout_words(9, 0, 3, head, i, j)[0]);
        ++calls;
      }
  REQUIRE(static_cast<int>(first.size()) == calls);
}

TEST_CASE("the threshold of p = 0 drops nothing") { REQUIRE(dropout_threshold(0) == 0); }

}  // namespace
}  // namespace tilefold
