// The part of a tensor that belongs to a rank, where state is spread over ranks.
#pragma once

#include "base/error.h"
#include "base/tensor.h"

namespace tilefold {

// [n / P] elements from r n / P on, of a dense tensor of n. REQUIRES: P divides n.
inline Tensor part_of(const Tensor& whole, int rank, int ranks) {
  expect(whole.dense() && whole.numel() % ranks == 0,
         "a part of a tensor that ranks do not divide");
  const std::int64_t count = whole.numel() / ranks;
  return Tensor(static_cast<std::byte*>(whole.data) + rank * count * size_of(whole.dtype),
                whole.dtype, {count});
}

}  // namespace tilefold
