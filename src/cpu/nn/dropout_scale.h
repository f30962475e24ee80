// Dropout's factors (contract/dropout.h) for part of a row, as numbers that a loop can multiply by.
#pragma once

#include <cstdint>

#include "contract/dropout.h"

namespace tilefold::cpu {

// Elements whose factors are made at a time; a multiple of 4, the decisions of one Philox call.
constexpr std::int64_t kDropoutChunk = 256;

// Factors of columns [begin, begin + count) of row `row`: 0 or 1 / (1 - p). REQUIRES: p > 0.
template <class A>
void dropout_scale(const Dropout& dropout, std::int64_t row, std::int64_t width, std::int64_t begin,
                   std::int64_t count, A* scale) {
  const std::uint64_t key = dropout_key(dropout.state->seed, dropout.state->step);
  const std::int64_t sample = dropout.state->first_sample + row / dropout.rows_per_sample;
  const std::uint64_t first =
      static_cast<std::uint64_t>((row % dropout.rows_per_sample) * width + begin);
  const std::uint32_t threshold = dropout_threshold(dropout.p);
  const A kept = A(1) / (A(1) - static_cast<A>(dropout.p));
  Philox::Words words{};
  for (std::int64_t c = 0; c < count; ++c) {
    const std::uint64_t e = first + static_cast<std::uint64_t>(c);
    if (c == 0 || e % 4 == 0)
      words = dropout_words(key, static_cast<std::uint64_t>(sample), dropout.site, e);
    scale[c] = words[e % 4] >= threshold ? kept : A(0);
  }
}

}  // namespace tilefold::cpu
