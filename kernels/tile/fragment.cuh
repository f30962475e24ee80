// A warpgroup's 64 x kColumns float32 matrix in registers, as the tensor cores leave it.
//
//   thread t, warp w = t / 32, lane l = t % 32, register r:
//     row = 16 w + l / 4 + 8 (r / 2 % 2)      column = 8 (r / 4) + 2 (l % 4) + r % 2
// so a thread holds two rows, "upper" and "lower", and the four lanes of a quad share them.
#pragma once

#include <cstdint>

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/tile/shared_tile.cuh"
#include "kernels/tile/warpgroup.cuh"

namespace tilefold::tile {

template <int kColumns_>
struct Fragment {
  static constexpr int kColumns = kColumns_, kCount = kColumns / 2;
  float x[kCount];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < kCount; ++r) x[r] = 0;
  }
  __device__ __forceinline__ void scale(float factor) {
#pragma unroll
    for (int r = 0; r < kCount; ++r) x[r] *= factor;
  }
  __device__ __forceinline__ void scale_rows(float upper, float lower) {
#pragma unroll
    for (int r = 0; r < kCount; ++r) x[r] *= is_lower(r) ? lower : upper;
  }
  static constexpr __device__ bool is_lower(int r) { return r / 2 % 2 == 1; }
  // Relative to first_column().
  static constexpr __device__ int column(int r) { return 8 * (r / 4) + r % 2; }
};

__device__ __forceinline__ int first_row() { return group_thread() / 32 * 16 + lane() / 4; }
__device__ __forceinline__ int first_column() { return 2 * (lane() % 4); }

// Scores of columns beyond `upper` and `lower`, by row of the thread, become -inf.
template <int kColumns>
__device__ __forceinline__ void hide_after(Fragment<kColumns>& s, int upper, int lower) {
  upper -= first_column();
  lower -= first_column();
#pragma unroll
  for (int r = 0; r < s.kCount; ++r)
    if (s.column(r) > (s.is_lower(r) ? lower : upper)) s.x[r] = __int_as_float(0xff800000);
}

// Those of columns before.
template <int kColumns>
__device__ __forceinline__ void hide_before(Fragment<kColumns>& s, int upper, int lower) {
  upper -= first_column();
  lower -= first_column();
#pragma unroll
  for (int r = 0; r < s.kCount; ++r)
    if (s.column(r) < (s.is_lower(r) ? lower : upper)) s.x[r] = __int_as_float(0xff800000);
}

// A 64 x kColumns matrix of packed 16-bit elements: the left operand of a product from registers.
// Step s holds columns 16 s .. 16 s + 15.
template <int kColumns_>
struct Packed {
  static constexpr int kColumns = kColumns_, kSteps = kColumns / 16;
  std::uint32_t a[kSteps][4];
};

// Columns column .. column + kColumns - 1 of a fragment; `column` is a multiple of 16.
template <class Element, int kColumns, int kFrom>
__device__ __forceinline__ void pack(Packed<kColumns>& to, const Fragment<kFrom>& from,
                                     int column = 0) {
  static_assert(kColumns <= kFrom);
#pragma unroll
  for (int s = 0; s < Packed<kColumns>::kSteps; ++s)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to.a[s][i] = ptx::pack<Element>(from.x[column / 2 + 8 * s + 2 * i],
                                      from.x[column / 2 + 8 * s + 2 * i + 1]);
}

// Into rows row .. row + 63 of a tile, from column 0. A row is 128 bytes at a multiple of 128, so
// the swizzled chunk of step s is the first one's with the bits of s flipped.
template <class Tile, int kColumns>
__device__ __forceinline__ void store(Tile& tile, int row, const Packed<kColumns>& from) {
  const int matrix = lane() / 8;
  const int at = row + group_thread() / 32 * 16 + matrix % 2 * 8 + lane() % 8;
  const std::uint32_t first = tile.chunk(at, matrix / 2 * 8);
#pragma unroll
  for (int s = 0; s < Packed<kColumns>::kSteps; ++s)
    ptx::store_matrices(
        (first ^ (s % 4 * 32u)) + static_cast<std::uint32_t>(s / 4) * Tile::kSlabBytes,
        from.a[s][0], from.a[s][1], from.a[s][2], from.a[s][3]);
}

}  // namespace tilefold::tile
