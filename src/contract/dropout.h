// Dropout without a stored mask: whether an element is kept is a function of seed, step, sample,
// site and element, never of tiling, strategy, micro-batch or rank.
//
//   row      flattened query row (token): batch * seq + position
//   sample   first_sample + row / rows_per_sample        position = row % rows_per_sample
//   words    Philox(key = seed + step * 0x9E3779B97F4A7C15, counter)
//   element-wise ops:  counter = (e / 4 low, e / 4 high, site, sample), e = position * width + column
//   attention:         counter = (j / 4, position i, site + head * 65536, sample), key j of its
//                      sequence (packed documents: key row % rows_per_sample)
//   keep     words[element % 4] >= p * 2^32          kept values are scaled by 1 / (1 - p)
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "contract/step_state.h"

namespace tilefold {

struct Dropout {
  float p = 0;                        // 0: no dropout, the bits of the path without it; [0, 1)
  std::uint32_t site = 0;             // which dropout of the model; REQUIRES: < 65536
  std::int64_t rows_per_sample = 1;
  const StepState* state = nullptr;   // device memory
};

constexpr std::uint64_t dropout_key(std::uint64_t seed, std::uint64_t step) {
  return seed + step * 0x9E3779B97F4A7C15ull;
}

constexpr std::uint32_t dropout_threshold(float p) {
  return static_cast<std::uint32_t>(static_cast<double>(p) * 4294967296.0);
}

// Four decisions' words: elements 4 * (e / 4) .. + 3 of a row-major [rows_per_sample, width] sample.
constexpr Philox::Words dropout_words(std::uint64_t key, std::uint64_t sample, std::uint32_t site,
                                      std::uint64_t e) {
  const std::uint64_t group = e / 4;
  return Philox::random(key, {static_cast<std::uint32_t>(group),
                              static_cast<std::uint32_t>(group >> 32), site,
                              static_cast<std::uint32_t>(sample)});
}

// The words of keys 4 * (j / 4) .. + 3 for query position i.
constexpr Philox::Words attention_dropout_words(std::uint64_t key, std::uint64_t sample,
                                                std::uint32_t site, std::uint32_t head,
                                                std::uint64_t i, std::uint64_t j) {
  return Philox::random(key, {static_cast<std::uint32_t>(j / 4), static_cast<std::uint32_t>(i),
                              site + head * 65536u, static_cast<std::uint32_t>(sample)});
}

}  // namespace tilefold
