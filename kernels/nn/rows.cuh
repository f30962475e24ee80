// How element-wise kernels go over rows: a block takes kRows rows of a segment of columns, each
// thread the same V columns of every row, so that several loads are under way and nothing is
// divided.
#pragma once

#include <cstdint>

#include "contract/workspace.h"
#include "kernels/nn/element.cuh"
#include "kernels/tile/launch.cuh"

namespace tilefold::nn {

constexpr int kRows = 4;

struct RowsGrid {
  int threads;
  unsigned segments;  // blocks side by side over the columns
  std::int64_t blocks;
};

inline RowsGrid rows_grid(std::int64_t rows, std::int64_t width, int vector) {
  const std::int64_t vectors = ceil_div(width, vector);
  const std::int64_t segments = ceil_div(vectors, 256);
  const std::int64_t threads = ceil_div(ceil_div(vectors, segments), kWarp) * kWarp;
  return {.threads = static_cast<int>(threads),
          .segments = static_cast<unsigned>(segments),
          .blocks = segments * ceil_div(rows, kRows)};
}

// Where a thread of such a block works: rows first .. first + kRows - 1, columns c ...
struct RowsPlace {
  std::int64_t first, c;
};

__device__ __forceinline__ RowsPlace rows_place(unsigned segments, int vector) {
  return {
      .first = static_cast<std::int64_t>(blockIdx.x / segments) * kRows,
      .c = (static_cast<std::int64_t>(blockIdx.x % segments) * blockDim.x + threadIdx.x) * vector};
}

}  // namespace tilefold::nn
