// Bodies of the table in row_kernels.h (see simd_inl.h).
#pragma once

#include <cstdint>

#include "cpu/attention/row_kernels.h"
#include "cpu/attention/simd_inl.h"
#include "cpu/attention/tile_kernels.h"

namespace tilefold::cpu {
namespace {

template <class S>
struct RowBodies {
  using Real = typename S::Real;
  using V = typename S::V;
  static constexpr int kLanes = S::kLanes;

  static Real sum_of(V x) {
    for (int step = kLanes / 2; step > 0; step /= 2)
      for (int i = 0; i < step; ++i) x[i] += x[i + step];
    return x[0];
  }

  // q . k over d columns for `lanes` keys side by side: squares of the key rows transposed in
  // registers, one chain of multiply-adds in ascending order, as in TileKernels::products.
  static V dot(const Real* q, const Real* k, std::int64_t k_row, std::int64_t lanes,
               std::int64_t d) {
    V sum = {};
    std::int64_t c = 0;
    for (; lanes == kLanes && c + kLanes <= d; c += kLanes) {
      V square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) square[i] = S::load(k + i * k_row + c);
      S::transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) sum += S::all(q[c + i]) * square[i];
    }
    for (; c < d; ++c) {
      V column = {};
      for (std::int64_t i = 0; i < lanes; ++i) column[i] = k[i * k_row + c];
      sum += S::all(q[c]) * column;
    }
    return sum;
  }

  // In the parts of scores() in tile_kernels.h: backward must find the very same score, for where
  // scores are huge another rounding makes another p.
  static void dots(const Real* q, const Real* k, std::int64_t k_row, std::int64_t keys,
                   std::int64_t d, Real* s) {
    for (std::int64_t j = 0; j < keys; j += kLanes, k += kLanes * k_row) {
      const std::int64_t lanes = keys - j < kLanes ? keys - j : kLanes;
      V sum = dot(q, k, k_row, lanes, d < kScorePart ? d : kScorePart);
      for (std::int64_t c = kScorePart; c < d; c += kScorePart)
        sum = sum + dot(q + c, k + c, k_row, lanes, d - c < kScorePart ? d - c : kScorePart);
      for (std::int64_t i = 0; i < lanes; ++i) s[j + i] = sum[i];
    }
  }

  // Replaces kLanes numbers of s at a time by body(them); behind the last one stands `rest`.
  template <class Body>
  static void for_each(Real* s, std::int64_t count, Real rest, Body body) {
    std::int64_t j = 0;
    for (; j + kLanes <= count; j += kLanes) S::store(s + j, body(S::load(s + j)));
    if (j == count) return;
    V x = S::all(rest);
    for (std::int64_t i = j; i < count; ++i) x[i - j] = s[i];
    x = body(x);
    for (std::int64_t i = j; i < count; ++i) s[i] = x[i - j];
  }

  static void soften(Real* s, std::int64_t keys, Real cap) {
    for_each(s, keys, 0, [cap](V x) { return tanh<S>(x / cap) * cap; });
  }

  static Real fold(Real* s, std::int64_t keys, Real* m, Real* l) {
    const Real kNone = -__builtin_inf();
    V highest = S::all(*m);
    for_each(s, keys, kNone, [&](V x) {
      highest = S::max(highest, x);
      return x;
    });
    Real now = *m;
    for (int i = 0; i < kLanes; ++i) now = highest[i] > now ? highest[i] : now;
    const V base = S::all(now);
    V sum = {};
    for_each(s, keys, kNone, [&](V x) {
      const V p = exp<S>(x - base);
      sum += p;
      return p;
    });
    const Real factor = exp<S>(S::all(*m) - base)[0];
    *l = *l * factor + sum_of(sum);
    *m = now;
    return factor;
  }

  // kVectors registers of o over all keys.
  template <int kVectors>
  static void weigh_columns(const Real* p, const Real* v, std::int64_t v_row, std::int64_t keys,
                            Real factor, Real* o) {
    V sum[kVectors] = {};
    for (std::int64_t j = 0; j < keys; ++j, v += v_row) {
      const V weight = S::all(p[j]);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) sum[i] += weight * S::load(v + i * kLanes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i)
      S::store(o + i * kLanes, S::load(o + i * kLanes) * factor + sum[i]);
  }

  static void weigh(const Real* p, const Real* v, std::int64_t v_row, std::int64_t keys,
                    std::int64_t d, Real factor, Real* o) {
    std::int64_t c = 0;
    for (; c + 8 * kLanes <= d; c += 8 * kLanes)
      weigh_columns<8>(p, v + c, v_row, keys, factor, o + c);
    for (; c + 2 * kLanes <= d; c += 2 * kLanes)
      weigh_columns<2>(p, v + c, v_row, keys, factor, o + c);
    for (; c + kLanes <= d; c += kLanes) weigh_columns<1>(p, v + c, v_row, keys, factor, o + c);
    for (; c < d; ++c) {
      Real sum = 0;
      for (std::int64_t j = 0; j < keys; ++j) sum += p[j] * v[j * v_row + c];
      o[c] = factor * o[c] + sum;
    }
  }

  static constexpr RowKernels<Real> table() { return {dots, soften, fold, weigh}; }
};

}  // namespace
}  // namespace tilefold::cpu
