// Division and rounding upwards, of sizes.
#pragma once

#include <cstdint>

namespace tilefold {

// REQUIRES: a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The least multiple of `unit` that is not below `size`. REQUIRES: size >= 0, unit > 0.
constexpr std::int64_t round_up(std::int64_t size, std::int64_t unit) {
  return ceil_div(size, unit) * unit;
}

}  // namespace tilefold
