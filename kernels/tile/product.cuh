// Products of a warpgroup, queued: they run while the warps go on. Between begin_products() and
// wait_products() nothing may touch the registers of a fragment or packed operand that takes part.
#pragma once

#include "kernels/tile/fragment.cuh"

namespace tilefold::tile {

__device__ __forceinline__ void begin_products() { ptx::wgmma_fence(); }

// Closes a group of queued products, to be waited for by number.
__device__ __forceinline__ void end_group() { ptx::wgmma_commit(); }

// All groups but the last kPending are finished.
template <int kPending>
__device__ __forceinline__ void wait_products() {
  ptx::wgmma_wait<kPending>();
}

// d = a bᵀ: rows a_row .. + 63 of a, rows 0 .. kColumns - 1 of b; k runs along the columns of both.
template <int kColumns, class TileA, class TileB>
__device__ __forceinline__ void multiply_rows(Fragment<kColumns>& d, const TileA& a, int a_row,
                                              const TileB& b) {
  static_assert(TileA::kColumns == TileB::kColumns && TileB::kRows == kColumns);
#pragma unroll
  for (int step = 0; step < TileA::kColumns / 16; ++step)
    ptx::wgmma<typename TileA::Element, 0, 0>(d.x, a.along_columns(a_row, step),
                                              b.along_columns(0, step), step > 0);
}

// d += a b: a in registers, rows of b are k; columns b_column .. + kColumns - 1 of b.
template <int kColumns, int kDepth, class TileB>
__device__ __forceinline__ void accumulate(Fragment<kColumns>& d, const Packed<kDepth>& a,
                                           const TileB& b, int b_column = 0) {
  static_assert(TileB::kRows == kDepth);
#pragma unroll
  for (int step = 0; step < Packed<kDepth>::kSteps; ++step)
    ptx::wgmma<typename TileB::Element, 1>(d.x, a.a[step], b.along_rows(b_column, step), 1);
}

// d += a b: rows a_row .. + 63 of a, all its columns are k; rows of b are k.
template <int kColumns, class TileA, class TileB>
__device__ __forceinline__ void accumulate(Fragment<kColumns>& d, const TileA& a, int a_row,
                                           const TileB& b) {
  static_assert(TileA::kColumns == TileB::kRows && TileB::kColumns == kColumns);
#pragma unroll
  for (int step = 0; step < TileB::kRows / 16; ++step)
    ptx::wgmma<typename TileA::Element, 0, 1>(d.x, a.along_columns(a_row, step),
                                              b.along_rows(0, step), 1);
}

// d = aᵀ b: columns a_column .. + 63 of a, columns b_column .. + kColumns - 1 of b; rows are k.
template <int kColumns, class TileA, class TileB>
__device__ __forceinline__ void multiply_columns(Fragment<kColumns>& d, const TileA& a,
                                                 int a_column, const TileB& b, int b_column) {
  static_assert(TileA::kRows == TileB::kRows);
#pragma unroll
  for (int step = 0; step < TileA::kRows / 16; ++step)
    ptx::wgmma<typename TileA::Element, 1, 1>(d.x, a.along_rows(a_column, step),
                                              b.along_rows(b_column, step), step > 0);
}

}  // namespace tilefold::tile
