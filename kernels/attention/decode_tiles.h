// The decode kernel's tiles and what its choice depends on: plain C++, as select.h.
#pragma once

#include <cstdint>

namespace tilefold::attention {

constexpr int kDecodeRows = 16;  // query rows of all heads of a group, side by side in one operand
constexpr int kDecodeKeys = 16;  // of a warp's step

// Warps of a block: four; six where one block alone fits and four warps' products took longer than
// their bytes (d 256 at 16 bits: 3.3 TB/s); two where a row has 1 KiB (float32, d 256).
constexpr int decode_warps(int row_bytes) {
  return row_bytes <= 256 ? 4 : row_bytes <= 512 ? 6 : 2;
}
// Steps of a warp in flight or at work. Bytes in flight hide the memory's latency: 4.5 TB/s x 0.8
// us are 27 KiB a multiprocessor; blocks of all widths keep 64 KiB and more there.
constexpr int decode_stages(int row_bytes) {
  return row_bytes <= 128 ? 4 : row_bytes <= 256 ? 3 : 2;
}
constexpr int decode_shared(int row_bytes) {
  return kDecodeRows * row_bytes +
         decode_warps(row_bytes) * decode_stages(row_bytes) * 2 * kDecodeKeys * row_bytes +
         2 * decode_warps(row_bytes) * kDecodeRows * 4;
}

}  // namespace tilefold::attention
