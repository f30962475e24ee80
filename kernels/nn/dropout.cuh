// Dropout's factors (contract/dropout.h) where an element-wise kernel works: 0 or 1 / (1 - p).
#pragma once

#include <cstdint>

#include "contract/dropout.h"

namespace tilefold::nn {

// Factors of columns [c, c + V) of row `row`. REQUIRES: p > 0; V is 1, or width and c are multiples
// of 4, so that every four columns share their words.
template <int V>
__device__ __forceinline__ void dropout_scale(const Dropout& dropout, std::int64_t row,
                                              std::int64_t width, std::int64_t c,
                                              float (&scale)[V]) {
  const std::uint64_t key = dropout_key(dropout.state->seed, dropout.state->step);
  const std::int64_t sample = dropout.state->first_sample + row / dropout.rows_per_sample;
  const std::int64_t first = row % dropout.rows_per_sample * width + c;
  const std::uint32_t threshold = dropout_threshold(dropout.p);
  const float kept = 1.0f / (1.0f - dropout.p);
  constexpr int kGroup = V < 4 ? V : 4;
#pragma unroll
  for (int i = 0; i < V; i += kGroup) {
    const std::uint64_t e = static_cast<std::uint64_t>(first + i);
    const Philox::Words words =
        dropout_words(key, static_cast<std::uint64_t>(sample), dropout.site, e);
    if constexpr (V == 1) {
      const unsigned at = static_cast<unsigned>(e % 4);
      const std::uint32_t word =
          at < 2 ? (at == 0 ? words[0] : words[1]) : (at == 2 ? words[2] : words[3]);
      scale[0] = word >= threshold ? kept : 0.0f;
    } else {
#pragma unroll
      for (int j = 0; j < kGroup; ++j)
        scale[i + j] = words[static_cast<unsigned>(j)] >= threshold ? kept : 0.0f;
    }
  }
}

}  // namespace tilefold::nn
