// A warp's matrix instructions from compute capability 8.0 on: 8x8 matrices of 16-bit elements from
// shared memory to registers, and their product. PTX ISA 9.0, "Warp Level Matrix Multiply".
//
//   lane l holds of an 8x8 matrix row l / 4, columns 2 (l % 4) and + 1 (transposed: column l / 4,
//   rows 2 (l % 4) and + 1), and names the address of row l % 8 of matrix l / 8.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/dtype.h"

namespace tilefold::ptx {

__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&to)[4],
                                                         std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared)
               : "memory");
}

// d += a b, 16 x 16 times 16 x 8, sums in float32. d: rows l / 4 and + 8, two columns each. a:
// upper left, lower left, upper right, lower right quarter. b: rows 0..7, rows 8..15, transposed.
template <class Element>
__device__ __forceinline__ void multiply_add(float* d, const std::uint32_t (&a)[4],
                                             std::uint32_t b_low, std::uint32_t b_high) {
  static_assert(std::is_same_v<Element, bf16> || std::is_same_v<Element, f16>);
  if constexpr (std::is_same_v<Element, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
  }
}

}  // namespace tilefold::ptx
