// A matrix in shared memory that warps read as operands: rows one after the other, their 16-byte
// chunks swizzled so that eight neighbouring rows' chunks of a column lie in different banks.
//
//   byte of (row, column) = row * kRowBytes + (chunk ^ (row % 8)) * 16 + ...,  chunk = column /
//   kPer
#pragma once

#include <cstdint>

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy_async.cuh"

namespace tilefold::tile {

template <class Element_, int kRows_, int kColumns_>
struct alignas(128) WarpTile {
  using Element = Element_;
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr int kPer = 16 / static_cast<int>(sizeof(Element));  // elements of a chunk
  static constexpr int kChunks = kColumns / kPer;                      // of a row
  static constexpr int kRowBytes = kColumns * static_cast<int>(sizeof(Element));
  static_assert(kChunks % 8 == 0);

  std::uint8_t bytes[kRows * kRowBytes];

  // Of the chunk.
  __device__ __forceinline__ std::uint32_t at(int row, int chunk) const {
    return ptx::shared_address(bytes) +
           static_cast<std::uint32_t>(row * kRowBytes + (chunk ^ (row % 8)) * 16);
  }
  __device__ __forceinline__ Element& element(int row, int column) {
    return reinterpret_cast<Element*>(bytes + row * kRowBytes +
                                      ((column / kPer) ^ (row % 8)) * 16)[column % kPer];
  }
};

// Rows of global memory, `stride` elements apart. REQUIRES where `vector`: address, stride and the
// width in bytes are multiples of 16.
template <class Element>
struct RowSource {
  const Element* data;
  std::int64_t stride;
  bool vector;
};

// kThreads threads, numbered `thread`: the first `count` rows of the source into the tile; the rows
// after them and columns from d on become zero, unread. In the background; part of the thread's
// open group.
template <int kThreads, class Tile>
__device__ __forceinline__ void load_rows(Tile& tile, const RowSource<typename Tile::Element>& from,
                                          int count, int d, int thread) {
  using Element = typename Tile::Element;
  constexpr int kAll = Tile::kRows * Tile::kChunks;
  if (kThreads % Tile::kChunks == 0 && from.vector) {  // a thread keeps to its column
    constexpr int kStep = kThreads / Tile::kChunks > 0 ? kThreads / Tile::kChunks : 1;
    static_assert(kStep <= Tile::kRows);
    const int first = thread / Tile::kChunks, chunk = thread % Tile::kChunks;
    const Element* source = from.data + first * from.stride + chunk * Tile::kPer;
    const std::int64_t advance = kStep * from.stride;
    if (chunk * Tile::kPer >= d) count = 0;
#pragma unroll
    for (int row = 0; row < Tile::kRows; row += kStep) {
      const bool live = first + row < count;
      ptx::copy_async(tile.at(first + row, chunk), live ? source : from.data, live ? 16 : 0);
      source += advance;
    }
    return;
  }
#pragma unroll 1
  for (int i = thread; i < kAll; i += kThreads) {
    const int row = i / Tile::kChunks, chunk = i % Tile::kChunks, column = chunk * Tile::kPer;
    const bool live = row < count && column < d;
    const Element* source = live ? from.data + row * from.stride + column : from.data;
    if (from.vector) {
      ptx::copy_async(tile.at(row, chunk), source, live ? 16 : 0);
    } else {
      alignas(16) Element x[Tile::kPer] = {};
      if (live) {
#pragma unroll
        for (int e = 0; e < Tile::kPer; ++e)
          if (column + e < d) x[e] = source[e];
      }
      ptx::store_shared(tile.at(row, chunk), *reinterpret_cast<const uint4*>(x));
    }
  }
}

}  // namespace tilefold::tile
