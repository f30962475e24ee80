// One register of numbers and the functions that attention needs of it, for the instruction set
// that the including translation unit is compiled for. Nothing here, nor in the other *_inl.h, may
// call or instantiate what another translation unit also has (the standard library's templates):
// the linker would keep one copy, perhaps the one made for a machine that this is not. Hence the
// unnamed namespace.
#pragma once

#include <cstdint>

namespace tilefold::cpu {
namespace {

template <class Real>
struct IntOf;
template <>
struct IntOf<float> {
  using Type = std::uint32_t;
};
template <>
struct IntOf<double> {
  using Type = std::uint64_t;
};

// 0, 1, ..., kCount - 1 as template arguments.
template <int... kNumber>
struct Sequence {};
template <int kCount, int... kRest>
struct Counted : Counted<kCount - 1, kCount - 1, kRest...> {};
template <int... kNumber>
struct Counted<0, kNumber...> {
  using Type = Sequence<kNumber...>;
};

// kLanes Reals in one register.
template <class Real_, int kLanes_>
struct Simd {
  using Real = Real_;
  using Int = typename IntOf<Real>::Type;
  static constexpr int kLanes = kLanes_;
  typedef Real V __attribute__((vector_size(kLanes_ * sizeof(Real_))));
  typedef Int I __attribute__((vector_size(kLanes_ * sizeof(Real_))));
  typedef Real Unaligned
      __attribute__((vector_size(kLanes_ * sizeof(Real_)), aligned(sizeof(Real_)), may_alias));

  static V load(const Real* p) { return *reinterpret_cast<const Unaligned*>(p); }
  static void store(Real* p, V x) { *reinterpret_cast<Unaligned*>(p) = x; }
  static V all(Real x) { return x - V{}; }  // 0 + x would cost an addition: it changes -0
  // One stage of a transposition: in registers a and b, kStep apart, the lanes whose number has or
  // has not the bit kStep change places.
  template <int kStep, int... kLane>
  static void exchange(V& a, V& b, Sequence<kLane...>) {
    const V low =
        __builtin_shufflevector(a, b, (kLane & kStep ? kLanes + kLane - kStep : kLane)...);
    b = __builtin_shufflevector(a, b, (kLane & kStep ? kLanes + kLane : kLane + kStep)...);
    a = low;
  }
  template <int kStep = 1>
  static void transpose(V (&x)[kLanes_]) {
    if constexpr (kStep < kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        if (!(i & kStep)) exchange<kStep>(x[i], x[i + kStep], typename Counted<kLanes>::Type{});
      transpose<2 * kStep>(x);
    }
  }
  static V max(V a, V b) { return a > b ? a : b; }  // b where either is NaN
  static V min(V a, V b) { return a < b ? a : b; }
};

// 2^f - 1 for |f| <= 1/2, relative error 2e-9 before rounding (minimax, fitted by reweighting).
template <class S>
typename S::V power_minus_one(typename S::V f) {
  typename S::V p = f * 0x1.41fbbcp-13f + 0x1.5f3e52p-10f;
  p = p * f + 0x1.3b2d4cp-7f;
  p = p * f + 0x1.c6aee8p-5f;
  p = p * f + 0x1.ebfbdcp-3f;
  p = p * f + 0x1.62e430p-1f;
  return p * f;
}

// x = k ln 2 + f ln 2 with k whole: 2^k and f. The addition of 1.5 * 2^23 rounds to a whole number
// and leaves k + 127 in the low bits, where a shift makes an exponent of it.
template <class S>
struct Split {
  typename S::V power, f;
  explicit Split(typename S::V x) {
    constexpr float kLog2E = 0x1.715476p0f, kRound = 0x1.8p23f + 127;
    const typename S::V z = x * kLog2E + kRound;
    f = x * kLog2E - (z - kRound);
    power = (typename S::V)((typename S::I)z << 23);
  }
};

// e^x for x <= 0: about 1 ulp + 1e-8 |x|, 0 below -87.3 (2^-126), NaN for NaN.
template <class S>
typename S::V exp(typename S::V x) {
  if constexpr (sizeof(typename S::Real) == 8) {
    for (int i = 0; i < S::kLanes; ++i) x[i] = __builtin_exp(x[i]);
    return x;
  } else {
    const Split<S> split(x);
    const typename S::V y = power_minus_one<S>(split.f) * split.power + split.power;
    return x < -87.3f ? typename S::V{} : y;
  }
}

// tanh x = -e / (2 + e) with e = exp(-2 |x|) - 1, which keeps its relative accuracy near 0.
template <class S>
typename S::V tanh(typename S::V x) {
  if constexpr (sizeof(typename S::Real) == 8) {
    for (int i = 0; i < S::kLanes; ++i) x[i] = __builtin_tanh(x[i]);
    return x;
  } else {
    typename S::V y = x < 0.f ? x + x : -(x + x);
    y = y < -40.f ? S::all(-40.f) : y;
    const Split<S> split(y);
    const typename S::V e = power_minus_one<S>(split.f) * split.power + (split.power - 1.f);
    const typename S::V magnitude = -e / (e + 2.f);
    return x < 0.f ? -magnitude : magnitude;
  }
}

}  // namespace
}  // namespace tilefold::cpu
