// Random numbers of the data, by name: a pure function of seed, stream, number and block, so that
// no state is kept and any sample can be made alone.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace tilefold {

// Streams never meet: each has its own counters. Values are part of what a seed means.
enum class DataStream : std::uint32_t {
  epoch_offset = 1,
  epoch_order = 2,
  train_symbols = 3,
  validation_symbols = 4,  // contents of made tasks, by sample
  train_keys = 5,
  validation_keys = 6,  // recall: which keys
  train_questions = 7,
  validation_questions = 8  // recall: their second order
};

// Apart from dropout and initialization, which use the seed itself.
constexpr std::uint64_t data_key(std::uint64_t seed) { return seed ^ 0x6174616400000000ull; }

constexpr Philox::Words draw(std::uint64_t seed, DataStream stream, std::uint64_t number,
                             std::uint32_t block, std::uint32_t round = 0) {
  return Philox::random(data_key(seed), {block, static_cast<std::uint32_t>(stream) + (round << 16),
                                         static_cast<std::uint32_t>(number),
                                         static_cast<std::uint32_t>(number >> 32)});
}

// A random word as a number in [0, count). Uneven by less than count / 2^32.
constexpr std::int32_t below(std::uint32_t word, std::int64_t count) {
  return static_cast<std::int32_t>(
      (static_cast<std::uint64_t>(word) * static_cast<std::uint64_t>(count)) >> 32);
}

// The same from two words, for counts up to 2^63. Uneven by less than count / 2^64.
constexpr std::int64_t below(std::uint32_t high, std::uint32_t low, std::int64_t count) {
  const auto n = static_cast<std::uint64_t>(count);
  const std::uint64_t n_high = n >> 32, n_low = n & 0xFFFFFFFFull;
  // Upper 64 bits of (high, low) * n, in 32-bit pieces.
  const std::uint64_t middle = high * n_low + ((low * n_low) >> 32);
  const std::uint64_t middle2 = low * n_high + (middle & 0xFFFFFFFFull);
  return static_cast<std::int64_t>(high * n_high + (middle >> 32) + (middle2 >> 32));
}

}  // namespace tilefold
