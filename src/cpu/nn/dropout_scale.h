// Dropout's factors (contract/dropout.h) for part of a row, as numbers that a loop can multiply by.
#pragma once

#include <cstdint>

#include "contract/dropout.h"

namespace tilefold::cpu {

// Elements whose factors are made at a time.
constexpr std::int64_t kDropoutChunk = 256;

// Factors of columns [begin, begin + count) of row `row`: 0 or 1 / (1 - p). A is float or double.
// REQUIRES: p > 0, count <= kDropoutChunk.
template <class A>
void dropout_scale(const Dropout& dropout, std::int64_t row, std::int64_t width, std::int64_t begin,
                   std::int64_t count, A* scale);

}  // namespace tilefold::cpu
