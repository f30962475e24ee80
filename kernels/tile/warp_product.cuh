// Products of one warp: 16 rows on the left, sums in a Fragment (here the warp's 16 rows of it). 16
// bit elements go through the tensor cores; float32 through multiply-adds on the same layout, in
// parts of 32 terms that are added up, so that no chain of roundings is long.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/ptx/mma.cuh"
#include "kernels/tile/fragment.cuh"
#include "kernels/tile/warp_tile.cuh"

namespace tilefold::tile {

// A left operand in registers, 16 x kColumns.
template <class Element, int kColumns>
struct Left : Packed<kColumns> {};
template <int kColumns>
struct Left<float, kColumns> : Fragment<kColumns> {};

template <class Element, int kColumns>
__device__ __forceinline__ void to_left(Left<Element, kColumns>& to,
                                        const Fragment<kColumns>& from) {
  if constexpr (std::is_same_v<Element, float>) {
#pragma unroll
    for (int r = 0; r < from.kCount; ++r) to.x[r] = from.x[r];
  } else {
    pack<Element>(static_cast<Packed<kColumns>&>(to), from);
  }
}

// Rows row .. + 15 of a tile, columns column .. + 15 (multiples of 16).
template <class Tile>
__device__ __forceinline__ void load_left(std::uint32_t (&a)[4], const Tile& tile, int row,
                                          int column) {
  ptx::load_matrices(a, tile.at(row + lane() % 16, column / 8 + lane() / 16));
}

// s = a bᵀ: rows a_row .. + 15 of a, rows b_row .. + kColumns - 1 of b; sums run along the columns
// of both.
template <int kColumns, class TileA, class TileB>
__device__ __forceinline__ void multiply_rows(Fragment<kColumns>& s, const TileA& a, int a_row,
                                              const TileB& b, int b_row = 0) {
  using Element = typename TileA::Element;
  static_assert(TileA::kColumns == TileB::kColumns && kColumns % 16 == 0);
  s.clear();
  if constexpr (std::is_same_v<Element, float>) {
    constexpr int kPart = 32;  // columns that one chain sums
    const int upper = a_row + lane() / 4, first = b_row + first_column();
#pragma unroll 1
    for (int from = 0; from < TileA::kChunks; from += kPart / 4)
#pragma unroll 1
      for (int j = 0; j < kColumns; j += 8) {
        float part[4] = {};
#pragma unroll
        for (int c = 0; c < kPart / 4; ++c) {
          const float4 x = ptx::load_shared(a.at(upper, from + c));
          const float4 y = ptx::load_shared(a.at(upper + 8, from + c));
          const float4 u = ptx::load_shared(b.at(first + j, from + c));
          const float4 v = ptx::load_shared(b.at(first + j + 1, from + c));
          part[0] = fmaf(x.w, u.w, fmaf(x.z, u.z, fmaf(x.y, u.y, fmaf(x.x, u.x, part[0]))));
          part[1] = fmaf(x.w, v.w, fmaf(x.z, v.z, fmaf(x.y, v.y, fmaf(x.x, v.x, part[1]))));
          part[2] = fmaf(y.w, u.w, fmaf(y.z, u.z, fmaf(y.y, u.y, fmaf(y.x, u.x, part[2]))));
          part[3] = fmaf(y.w, v.w, fmaf(y.z, v.z, fmaf(y.y, v.y, fmaf(y.x, v.x, part[3]))));
        }
#pragma unroll
        for (int r = 0; r < s.kCount; ++r)  // registers are not indexed at run time
          if (r / 4 * 8 == j) s.x[r] += part[r % 4];
      }
  } else {
    const int matrix = lane() / 8;
    const int key = b_row + matrix / 2 * 8 + lane() % 8;
#pragma unroll
    for (int step = 0; step < TileA::kColumns / 16; ++step) {
      std::uint32_t left[4];
      load_left(left, a, a_row, 16 * step);
#pragma unroll
      for (int j = 0; j < kColumns; j += 16) {
        std::uint32_t right[4];
        ptx::load_matrices(right, b.at(key + j, 2 * step + matrix % 2));
        ptx::multiply_add<Element>(s.x + j / 2, left, right[0], right[1]);
        ptx::multiply_add<Element>(s.x + j / 2 + 4, left, right[2], right[3]);
      }
    }
  }
}

// d += a b: rows 0 .. kDepth - 1 of b are summed over; columns b_column .. + kColumns - 1 of b.
template <int kColumns, class Element, int kDepth, class TileB>
__device__ __forceinline__ void accumulate(Fragment<kColumns>& d, const Left<Element, kDepth>& a,
                                           const TileB& b, int b_column = 0) {
  if constexpr (std::is_same_v<Element, float>) {
    constexpr int kGroup = 32, kPart = kDepth < 32 ? kDepth : 32;  // columns; terms of one chain
    const int quad = lane() & ~3, chunk = (b_column + first_column()) / 4;
    const auto half = static_cast<std::uint32_t>(lane() % 2 * 8);  // bytes into the chunk
#pragma unroll 1
    for (int n = 0; n < kColumns; n += kGroup)
#pragma unroll 1
      for (int from = 0; from < kDepth; from += kPart) {
        Fragment<kGroup> part;
        part.clear();
#pragma unroll 1
        for (int eight = from / 8; eight < (from + kPart) / 8; ++eight) {
          float x[4] = {};
#pragma unroll
          for (int r = 0; r < a.kCount; ++r)  // registers are not indexed at run time
            if (r / 4 == eight) x[r % 4] = a.x[r];
#pragma unroll
          for (int k = 0; k < 8; ++k) {
            const float upper = __shfl_sync(0xffffffffu, x[k % 2], quad + k / 2);
            const float lower = __shfl_sync(0xffffffffu, x[2 + k % 2], quad + k / 2);
#pragma unroll
            for (int j = 0; j < kGroup; j += 8) {
              const float2 v =
                  ptx::load_shared_pair(b.at(8 * eight + k, chunk + (n + j) / 4) + half);
              part.x[j / 2] = fmaf(upper, v.x, part.x[j / 2]);
              part.x[j / 2 + 1] = fmaf(upper, v.y, part.x[j / 2 + 1]);
              part.x[j / 2 + 2] = fmaf(lower, v.x, part.x[j / 2 + 2]);
              part.x[j / 2 + 3] = fmaf(lower, v.y, part.x[j / 2 + 3]);
            }
          }
        }
#pragma unroll
        for (int r = 0; r < d.kCount; ++r)
          if (r / (kGroup / 2) * kGroup == n) d.x[r] += part.x[r % (kGroup / 2)];
      }
  } else {
    const int matrix = lane() / 8, row = matrix % 2 * 8 + lane() % 8;
    const int chunk = b_column / 8 + matrix / 2;
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step)
#pragma unroll
      for (int j = 0; j < kColumns; j += 16) {
        std::uint32_t right[4];
        ptx::load_matrices_transposed(right, b.at(16 * step + row, chunk + j / 8));
        ptx::multiply_add<Element>(d.x + j / 2, a.a[step], right[0], right[1]);
        ptx::multiply_add<Element>(d.x + j / 2 + 4, a.a[step], right[2], right[3]);
      }
  }
}

// The same for kCount left operands of 16 rows one below the other, which share each read of b.
template <int kCount, int kColumns, class TileA, class TileB>
__device__ __forceinline__ void multiply_rows(Fragment<kColumns> (&s)[kCount], const TileA& a,
                                              int a_row, const TileB& b) {
  using Element = typename TileA::Element;
  if constexpr (kCount == 1 || std::is_same_v<Element, float>) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) multiply_rows(s[i], a, a_row + 16 * i, b);
  } else {
    const int matrix = lane() / 8;
    const int key = matrix / 2 * 8 + lane() % 8;
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i].clear();
#pragma unroll
    for (int step = 0; step < TileA::kColumns / 16; ++step) {
      std::uint32_t left[kCount][4];
#pragma unroll
      for (int i = 0; i < kCount; ++i) load_left(left[i], a, a_row + 16 * i, 16 * step);
#pragma unroll
      for (int j = 0; j < kColumns; j += 16) {
        std::uint32_t right[4];
        ptx::load_matrices(right, b.at(key + j, 2 * step + matrix % 2));
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          ptx::multiply_add<Element>(s[i].x + j / 2, left[i], right[0], right[1]);
          ptx::multiply_add<Element>(s[i].x + j / 2 + 4, left[i], right[2], right[3]);
        }
      }
    }
  }
}

template <int kCount, int kColumns, class Element, int kDepth, class TileB>
__device__ __forceinline__ void accumulate(Fragment<kColumns> (&d)[kCount],
                                           const Left<Element, kDepth> (&a)[kCount], const TileB& b,
                                           int b_column = 0) {
  if constexpr (kCount == 1 || std::is_same_v<Element, float>) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) accumulate<kColumns, Element>(d[i], a[i], b, b_column);
  } else {
    const int matrix = lane() / 8, row = matrix % 2 * 8 + lane() % 8;
    const int chunk = b_column / 8 + matrix / 2;
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step)
#pragma unroll
      for (int j = 0; j < kColumns; j += 16) {
        std::uint32_t right[4];
        ptx::load_matrices_transposed(right, b.at(16 * step + row, chunk + j / 8));
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          ptx::multiply_add<Element>(d[i].x + j / 2, a[i].a[step], right[0], right[1]);
          ptx::multiply_add<Element>(d[i].x + j / 2 + 4, a[i].a[step], right[2], right[3]);
        }
      }
  }
}

// A left operand from a tile: rows row .. + 15, all columns.
template <class Tile>
__device__ __forceinline__ void read_left(Left<typename Tile::Element, Tile::kColumns>& to,
                                          const Tile& tile, int row) {
  if constexpr (std::is_same_v<typename Tile::Element, float>) {
    const auto half = static_cast<std::uint32_t>(lane() % 2 * 8);
#pragma unroll
    for (int r = 0; r < to.kCount; r += 2) {
      const int at = row + lane() / 4 + (to.is_lower(r) ? 8 : 0);
      const float2 x =
          ptx::load_shared_pair(tile.at(at, (to.column(r) + first_column()) / 4) + half);
      to.x[r] = x.x;
      to.x[r + 1] = x.y;
    }
  } else {
#pragma unroll
    for (int step = 0; step < Tile::kColumns / 16; ++step)
      load_left(to.a[step], tile, row, 16 * step);
  }
}

// The transposed one: columns column .. + 15 of the tile are the rows, its rows the columns.
template <class Tile>
__device__ __forceinline__ void read_left_transposed(Left<typename Tile::Element, Tile::kRows>& to,
                                                     const Tile& tile, int column) {
  if constexpr (std::is_same_v<typename Tile::Element, float>) {
#pragma unroll
    for (int r = 0; r < to.kCount; ++r) {
      const int from = to.column(r) + first_column();
      const int at = column + lane() / 4 + (to.is_lower(r) ? 8 : 0);
      const float4 x = ptx::load_shared(tile.at(from, at / 4));
      to.x[r] = at % 4 == 0 ? x.x : at % 4 == 1 ? x.y : at % 4 == 2 ? x.z : x.w;
    }
  } else {
    const int matrix = lane() / 8, row = matrix / 2 * 8 + lane() % 8;
#pragma unroll
    for (int step = 0; step < Tile::kRows / 16; ++step)
      ptx::load_matrices_transposed(to.a[step], tile.at(16 * step + row, column / 8 + matrix % 2));
  }
}

}  // namespace tilefold::tile
