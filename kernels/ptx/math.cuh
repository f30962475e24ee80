// Fast functions and conversions, one instruction each.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/dtype.h"

namespace tilefold::ptx {

// 2^x; relative error 2^-22; 2^-inf is 0.
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2 x; absolute error 2^-22 near 1.
__device__ __forceinline__ float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats rounded to nearest even and packed, `low` in the low half.
template <class Element>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  static_assert(std::is_same_v<Element, bf16> || std::is_same_v<Element, f16>);
  std::uint32_t both;
  if constexpr (std::is_same_v<Element, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  }
  return both;
}

__device__ __forceinline__ float widen(bf16 x) {
  return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16);
}

__device__ __forceinline__ float widen(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

}  // namespace tilefold::ptx
