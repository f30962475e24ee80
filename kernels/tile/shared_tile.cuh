// A matrix of 16-bit elements in shared memory, as the copy engine writes it and the tensor cores
// read it: slabs of 64 columns (128 bytes a row), each with its 16-byte chunks swizzled.
//
//   byte of (row, column) = slab * kRows * 128 + row * 128 + ((column % 64 / 8) ^ (row % 8)) * 16
//                           + column % 8 * 2,                              slab = column / 64
#pragma once

#include <cstdint>

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/tile/warpgroup.cuh"

namespace tilefold::tile {

constexpr int kSlabColumns = 64;

template <class Element_, int kRows_, int kColumns_>
struct alignas(1024) SharedTile {
  using Element = Element_;
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr int kSlabs = kColumns / kSlabColumns;
  static constexpr std::uint32_t kSlabBytes = kRows * 128;
  static constexpr std::uint32_t kBytes = kSlabs * kSlabBytes;
  static_assert(kColumns % kSlabColumns == 0 && kRows % 8 == 0);

  std::uint8_t bytes[kBytes];

  // Of the 16-byte chunk that holds (row, column).
  __device__ __forceinline__ std::uint32_t chunk(int row, int column) const {
    return ptx::shared_address(bytes) +
           static_cast<std::uint32_t>(column / kSlabColumns) * kSlabBytes +
           static_cast<std::uint32_t>(row * 128 + (((column % kSlabColumns) / 8) ^ (row % 8)) * 16);
  }

  // As an operand whose k runs along the columns: rows from `row` (a multiple of 8), columns
  // 16 * step and on.
  __device__ __forceinline__ std::uint64_t along_columns(int row, int step) const {
    return ptx::matrix_descriptor(
        ptx::shared_address(bytes) + static_cast<std::uint32_t>(row) * 128, 16,
        static_cast<std::uint32_t>(step / 4) * kSlabBytes +
            static_cast<std::uint32_t>(step % 4 * 32));
  }

  // As an operand whose k runs along the rows: rows 16 * step and on, columns from `column` (a
  // multiple of 64).
  __device__ __forceinline__ std::uint64_t along_rows(int column, int step) const {
    const std::uint32_t slab = static_cast<std::uint32_t>(column / kSlabColumns) * kSlabBytes;
    return ptx::matrix_descriptor(ptx::shared_address(bytes) + slab, kSlabBytes,
                                  static_cast<std::uint32_t>(step * 2048));
  }
};

// Which rows of a [batch, seq, heads, d] tensor a tile covers.
struct RowsAt {
  int row, head, batch;
};

// One thread: rows [at.row, at.row + kRows), all columns, into the tile from row `tile_row`, in
// boxes of kBoxRows rows; completes on `barrier`, which counts the bytes already.
template <int kBoxRows, class Tile>
__device__ __forceinline__ void load_tile(Tile& tile, const CUtensorMap* map, RowsAt at,
                                          std::uint64_t* barrier) {
  static_assert(Tile::kRows % kBoxRows == 0 && kBoxRows % 8 == 0);
#pragma unroll
  for (int slab = 0; slab < Tile::kSlabs; ++slab)
#pragma unroll
    for (int row = 0; row < Tile::kRows; row += kBoxRows)
      ptx::copy_tensor_to_shared(tile.bytes + slab * Tile::kSlabBytes + row * 128, map,
                                 slab * kSlabColumns, at.row + row, at.head, at.batch, barrier);
}

// One warp: rows from `first` on become zero, for the tensor cores to read.
template <class Tile>
__device__ __forceinline__ void clear_rows(Tile& tile, int first) {
  const int chunks = (Tile::kRows - first) * 8;
#pragma unroll 1
  for (int slab = 0; slab < Tile::kSlabs; ++slab)
#pragma unroll 1
    for (int i = lane(); i < chunks; i += 32)
      reinterpret_cast<uint4*>(tile.bytes + slab * Tile::kSlabBytes + first * 128)[i] =
          make_uint4(0, 0, 0, 0);
  ptx::fence_proxy_shared();
  __syncwarp();
}

// kThreads neighbouring threads: the first `count` rows and the first `columns`
// columns (a multiple of 8) to rows of global memory `stride` elements apart. What the tile holds
// must be visible to all.
template <int kThreads, class Tile>
__device__ __forceinline__ void copy_rows(std::uint16_t* to, std::int64_t stride, const Tile& tile,
                                          int count, int columns) {
  constexpr int kChunks = Tile::kColumns / 8;  // a row
  int thread = static_cast<int>(threadIdx.x) % kThreads;
  if constexpr (kThreads == 32) thread = lane_here();
  const int column = thread % kChunks * 8;
  if (column >= columns) return;
  to += thread / kChunks * stride + column;
#pragma unroll 1
  for (int row = thread / kChunks; row < count; row += kThreads / kChunks) {
    uint4 chunk;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
                 : "r"(tile.chunk(row, column)));
    *reinterpret_cast<uint4*>(to) = chunk;
    to += kThreads / kChunks * stride;
  }
}

}  // namespace tilefold::tile
