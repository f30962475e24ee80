// Element types: 16-bit storage types with round-to-nearest-even conversion, and their names.
// Arithmetic is always done in float (or double, for the oracle); bf16 and f16 only store.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tilefold {

enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64, u16, u8 };

std::int64_t size_of(DType dtype);
std::string_view name_of(DType dtype);
DType parse_dtype(std::string_view name);  // throws UsageError naming the allowed names
bool is_floating(DType dtype);
// Half the distance between 1 and the next number of a floating dtype: the relative error of one
// rounding. 2^-24, 2^-8 (bf16), 2^-11 (f16), 2^-53 (f64).
double unit_roundoff(DType dtype);

struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  constexpr explicit bf16(float x) {
    std::uint32_t u = std::bit_cast<std::uint32_t>(x);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    if (!nan) u += 0x7fffu + ((u >> 16) & 1u);
    bits = static_cast<std::uint16_t>(u >> 16);
    if (nan) bits |= 0x40u;  // keep it a (quiet) NaN even if the payload sat in the low half
  }
  constexpr operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

struct f16 {
  std::uint16_t bits = 0;
  f16() = default;
  constexpr explicit f16(float x);
  constexpr operator float() const;
};

constexpr f16::f16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t a = u & 0x7fffffffu;
  std::uint32_t h;
  if (a > 0x7f800000u) {
    h = 0x7e00u;  // NaN
  } else if (a >= 0x477ff000u) {
    h = 0x7c00u;  // rounds to infinity (65520 and above)
  } else if (a >= 0x38800000u) {  // normal: 2^-14 and above
    const std::uint32_t r = a + 0xfffu + ((a >> 13) & 1u);
    h = (r - 0x38000000u) >> 13;
  } else if (a >= 0x33000000u) {  // subnormal: multiples of 2^-24
    const std::uint32_t shift = 126u - (a >> 23);  // 14..24
    const std::uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
    const std::uint32_t half = 1u << (shift - 1);
    h = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
    if (rest > half || (rest == half && (h & 1u))) ++h;
  } else {
    h = 0;
  }
  bits = static_cast<std::uint16_t>(sign | h);
}

constexpr f16::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t e = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
  if (e == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (e != 0) return std::bit_cast<float>(sign | ((e + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
  if constexpr (std::is_same_v<T, f16>) return DType::f16;
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::i64;
  if constexpr (std::is_same_v<T, std::uint16_t>) return DType::u16;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::u8;
}

// The type that sums of T are kept in: float for every storage type, double for double.
template <class T>
using accumulator_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The same as a value: the dtype of gradients, moments and row statistics.
constexpr DType sum_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace tilefold
