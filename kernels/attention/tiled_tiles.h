// Rows of the table for the portable tiled kernels: tiles and shared memory by padded head width
// and element size. Plain C++: choice, plan and kernels share it.
//
// Four warps of 16 rows each, or of 32. Shared memory is sized for 99 KiB (compute capability 8.6)
// wherever a row of the padded width has up to 512 bytes; float32 at d 256 takes 160 KiB.
#pragma once

#include <cstdint>

namespace tilefold::attention {

constexpr int kTileRows = 64;

// Forward without parts: 128 rows, two operands a warp that share each read of K and V, where
// scores and O of both fit the registers.
constexpr int forward_rows(int row_bytes, int size, bool split) {
  return !split && size == 2 && row_bytes <= 256 ? 128 : kTileRows;
}

// Keys of a tile: scores of a thread take 32 registers, 64 with two operands at d 64, and leave
// room for O's 32 to 128.
constexpr int forward_keys(int row_bytes, int rows) {
  return row_bytes <= 128   ? 64
         : row_bytes <= 256 ? (rows > kTileRows ? 32 : 64)
                            : 16384 / row_bytes;
}
// Q, two stages of K and V.
constexpr int forward_shared(int row_bytes, int rows) {
  return rows * row_bytes + 4 * forward_keys(row_bytes, rows) * row_bytes;
}

// Backward: two resident tiles (K and V, or Q and dO), stages of the two others. At d 64 and 16
// bits a warp has two operands of 16 resident rows, which share each read of the others.
constexpr int backward_resident(int row_bytes, int size) {
  return size == 2 && row_bytes == 128 ? 128 : kTileRows;
}
constexpr int backward_rows(int row_bytes) { return row_bytes <= 512 ? 32 : 16; }
constexpr int backward_stages(int row_bytes) { return row_bytes <= 256 ? 2 : 1; }
constexpr int backward_shared(int row_bytes, int size) {
  const int stage = 2 * backward_rows(row_bytes) * row_bytes + 3 * backward_rows(row_bytes) * 4;
  return 2 * backward_resident(row_bytes, size) * row_bytes + backward_stages(row_bytes) * stage;
}

}  // namespace tilefold::attention
