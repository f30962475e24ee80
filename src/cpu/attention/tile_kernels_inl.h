// Bodies of the table in tile_kernels.h, for the instruction set that the including translation
// unit is compiled for (see simd_inl.h).
#pragma once

#include <cstdint>

#include "cpu/attention/simd_inl.h"
#include "cpu/attention/tile_kernels.h"

namespace tilefold::cpu {
namespace {

enum class Store { set, add, rescale };

// kRows x kVectors registers of c, over the whole depth.
// Element (r, k) of a: a[r * a_step + k] by rows, a[k * a_step + r] by columns.
template <class S, int kRows, int kVectors, bool kByRows, Store kStore>
[[gnu::always_inline]] inline void micro(std::int64_t depth, const typename S::Real* a,
                                         std::int64_t a_step, std::int64_t segments,
                                         std::int64_t a_segment, const typename S::Real* b,
                                         typename S::Real* c, std::int64_t c_row,
                                         const typename S::Real* factor) {
  using V = typename S::V;
  V acc[kRows][kVectors] = {};
  for (std::int64_t s = 0; s < segments; ++s, a += a_segment) {
    const typename S::Real* at = a;
    for (std::int64_t k = 0; k < depth; ++k, b += kPanel, at += kByRows ? 1 : a_step) {
      V line[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) line[v] = S::load(b + v * S::kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V x = S::all(at[kByRows ? r * a_step : r]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] += x * line[v];
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      typename S::Real* to = c + r * c_row + v * S::kLanes;
      V sum = acc[r][v];
      if constexpr (kStore == Store::add) sum = S::load(to) + sum;
      if constexpr (kStore == Store::rescale)
        sum = S::load(to) * S::load(factor + v * S::kLanes) + sum;
      S::store(to, sum);
    }
  }
}

// All rows of one group of columns: kRows at a time, then the rest by halves.
template <class S, int kRows, int kVectors, bool kByRows, Store kStore>
void all_rows(std::int64_t rows, std::int64_t depth, const typename S::Real* a, std::int64_t a_step,
              std::int64_t segments, std::int64_t a_segment, const typename S::Real* b,
              typename S::Real* c, std::int64_t c_row, const typename S::Real* factor) {
  std::int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    micro<S, kRows, kVectors, kByRows, kStore>(depth, a + r * (kByRows ? a_step : 1), a_step,
                                               segments, a_segment, b, c + r * c_row, c_row,
                                               factor);
  if constexpr (kRows > 1)
    if (r < rows)
      all_rows<S, kRows / 2, kVectors, kByRows, kStore>(
          rows - r, depth, a + r * (kByRows ? a_step : 1), a_step, segments, a_segment, b,
          c + r * c_row, c_row, factor);
}

// The table's functions for registers of S, kRows x 2 of them in a product.
template <class S, int kRows>
struct Bodies {
  using Real = typename S::Real;
  using V = typename S::V;
  static constexpr int kLanes = S::kLanes;
  static constexpr std::int64_t kStep = 2 * kLanes;  // columns a product works on at a time

  static void products(std::int64_t rows, std::int64_t columns, std::int64_t depth, const Real* a,
                       std::int64_t a_row, std::int64_t segments, std::int64_t a_segment,
                       const Real* b, Real* c, std::int64_t c_row, bool add) {
    std::int64_t n = 0;
    for (; n + kStep <= columns; n += kStep)
      (add ? all_rows<S, kRows, 2, true, Store::add>
           : all_rows<S, kRows, 2, true, Store::set>)(rows, depth, a, a_row, segments, a_segment,
                                                      b + n, c + n, c_row, nullptr);
    if (n < columns)
      (add ? all_rows<S, kRows, 1, true, Store::add>
           : all_rows<S, kRows, 1, true, Store::set>)(rows, depth, a, a_row, segments, a_segment,
                                                      b + n, c + n, c_row, nullptr);
  }

  static void accumulate(std::int64_t rows, std::int64_t depth, const Real* a, std::int64_t a_row,
                         const Real* b, Real* c, const Real* factor) {
    for (std::int64_t n = 0; n < kPanel; n += kStep)
      all_rows<S, kRows, 2, false, Store::rescale>(rows, depth, a, a_row, 1, 0, b + n, c + n,
                                                   kPanel, factor + n);
  }

  static void soften(Real* s, std::int64_t keys, Real cap) {
    for (std::int64_t e = 0; e < keys * kPanel; e += kLanes)
      S::store(s + e, tanh<S>(S::load(s + e) / cap) * cap);
  }

  static void hide(Real* s, std::int64_t keys, const std::int32_t* first,
                   const std::int32_t* last) {
    for (std::int64_t j = 0; j < keys; ++j)
      for (std::int64_t n = 0; n < kPanel; ++n)
        s[j * kPanel + n] = j >= first[n] && j < last[n] ? s[j * kPanel + n] : -__builtin_inf();
  }

  static void fold(Real* s, std::int64_t keys, Real* m, Real* l, Real* factor) {
    const Real kNone = -__builtin_inf();
    for (std::int64_t n = 0; n < kPanel; n += kLanes) {
      const V before = S::load(m + n);
      V top[4] = {before, before, before, before};
      std::int64_t j = 0;
      for (; j + 4 <= keys; j += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) top[i] = S::max(top[i], S::load(s + (j + i) * kPanel + n));
      for (; j < keys; ++j) top[0] = S::max(top[0], S::load(s + j * kPanel + n));
      const V now = S::max(S::max(top[0], top[1]), S::max(top[2], top[3]));
      const V base = now == kNone ? V{} : now;  // -inf - -inf would be NaN
      V sum[4] = {};
      j = 0;
      for (; j + 4 <= keys; j += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const V p = exp<S>(S::load(s + (j + i) * kPanel + n) - base);
          S::store(s + (j + i) * kPanel + n, p);
          sum[i] += p;
        }
#pragma GCC unroll 3
      for (int i = 0; i < 3; ++i) {
        if (j + i >= keys) break;
        const V p = exp<S>(S::load(s + (j + i) * kPanel + n) - base);
        S::store(s + (j + i) * kPanel + n, p);
        sum[i] += p;
      }
      const V scale = exp<S>(before - base);
      S::store(factor + n, scale);
      S::store(l + n, S::load(l + n) * scale + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
      S::store(m + n, now);
    }
  }

  static void differentiate(Real* s, Real* dp, std::int64_t keys, const Real* m,
                            const Real* inverse_l, const Real* delta, const Real* keep, Real cap) {
    for (std::int64_t n = 0; n < kPanel; n += kLanes) {
      const V top = S::load(m + n), inverse = S::load(inverse_l + n), d = S::load(delta + n);
      for (std::int64_t e = n; e < keys * kPanel; e += kPanel) {
        const V t = S::load(s + e);
        const V p = exp<S>(S::min(t - top, V{})) * inverse;
        V dropped = p, gradient = S::load(dp + e);
        if (keep) {
          dropped *= S::load(keep + e);
          gradient *= S::load(keep + e);
        }
        gradient = p * (gradient - d);
        if (cap > 0) gradient = p == 0 ? V{} : gradient * (1 - (t / cap) * (t / cap));
        S::store(s + e, dropped);
        S::store(dp + e, gradient);
      }
    }
  }

  static void drop(Real* s, const Real* keep, std::int64_t keys) {
    for (std::int64_t e = 0; e < keys * kPanel; e += kLanes)
      S::store(s + e, S::load(s + e) * S::load(keep + e));
  }

  // Squares of kLanes x kLanes go through registers; what is left at the edges, one by one.
  static void to_panel(const Real* x, std::int64_t x_row, std::int64_t rows, std::int64_t d,
                       Real factor, Real* y) {
    for (std::int64_t n = 0; n < kPanel; n += kLanes) {
      std::int64_t c = 0;
      for (; n + kLanes <= rows && c + kLanes <= d; c += kLanes) {
        V square[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) square[i] = S::load(x + (n + i) * x_row + c) * factor;
        S::transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) S::store(y + (c + i) * kPanel + n, square[i]);
      }
      for (; c < d; ++c)
        for (std::int64_t i = n; i < n + kLanes; ++i)
          y[c * kPanel + i] = i < rows ? factor * x[i * x_row + c] : 0;
    }
  }

  static void from_panel(const Real* x, std::int64_t d, const Real* divisor, std::int64_t rows,
                         Real* y, std::int64_t y_row) {
    for (std::int64_t n = 0; n < rows; n += kLanes) {
      const V by = S::load(divisor + n);
      std::int64_t c = 0;
      for (; n + kLanes <= rows && c + kLanes <= d; c += kLanes) {
        V square[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          const V line = S::load(x + (c + i) * kPanel + n);
          square[i] = by == 0 ? V{} : line / by;
        }
        S::transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) S::store(y + (n + i) * y_row + c, square[i]);
      }
      for (; c < d; ++c)
        for (std::int64_t i = n; i < rows && i < n + kLanes; ++i)
          y[i * y_row + c] = divisor[i] == 0 ? 0 : x[c * kPanel + i] / divisor[i];
    }
  }

  static constexpr TileKernels<Real> table(const char* name) {
    return {name, products,      accumulate, soften,   hide,
            fold, differentiate, drop,       to_panel, from_panel};
  }
};

inline void widen_bf16(const std::uint16_t* x, float* y, std::int64_t count) {
  for (std::int64_t e = 0; e < count; ++e)
    y[e] = __builtin_bit_cast(float, static_cast<std::uint32_t>(x[e]) << 16);
}

// The exponent is moved by a product with 2^112, which makes subnormals right too; what lands at
// 2^16 or above was infinity or NaN.
inline void widen_f16(const std::uint16_t* x, float* y, std::int64_t count) {
  for (std::int64_t e = 0; e < count; ++e) {
    const std::uint32_t bits = x[e], magnitude = (bits & 0x7fffu) << 13;
    const float moved = __builtin_bit_cast(float, magnitude) * 0x1p112f;
    const std::uint32_t special = moved >= 65536.f ? 0x7f800000u : 0u;
    y[e] = __builtin_bit_cast(
        float, __builtin_bit_cast(std::uint32_t, moved) | special | (bits & 0x8000u) << 16);
  }
}

// Philox4x32-10 as in base/philox.h, which may not be called from here (see simd_inl.h). The loop
// over lanes inside each round becomes vector code.
inline void random_words(std::uint64_t key, std::uint32_t group, const std::uint32_t* positions,
                         std::uint32_t site, const std::uint32_t* samples,
                         std::uint32_t (*words)[kPanel]) {
  std::uint32_t c0[kPanel], c1[kPanel], c2[kPanel], c3[kPanel];
  for (int n = 0; n < kPanel; ++n) {
    c0[n] = group;
    c1[n] = positions[n];
    c2[n] = site;
    c3[n] = samples[n];
  }
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int n = 0; n < kPanel; ++n) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0[n];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2[n];
      c0[n] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[n] ^ k0;
      c1[n] = static_cast<std::uint32_t>(p1);
      c2[n] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[n] ^ k1;
      c3[n] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int n = 0; n < kPanel; ++n) {
    words[0][n] = c0[n];
    words[1][n] = c1[n];
    words[2][n] = c2[n];
    words[3][n] = c3[n];
  }
}

}  // namespace
}  // namespace tilefold::cpu
