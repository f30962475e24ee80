// exp, the logistic function and the normal distribution in a form that the compiler vectorizes:
// no calls, no branches, no tables. float versions are within 2 ulp of the exact value (normal():
// 2 ulp near 0, growing as z^2/2 ulp in the tails, which is the rounding of z^2 itself), but give 0
// where the result would be subnormal or nearly so: arithmetic on subnormals is a hundred times
// slower. double versions are the standard library's.
//
// The polynomials were fitted for this file (weighted least squares, iterated to the minimax).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tilefold::cpu {

// exp(x) = 2^k exp(r), k = round(x / ln 2), |r| <= ln 2 / 2. 0 below -87; infinity and NaN as they
// should be.
[[gnu::always_inline]] inline float vector_exp(float x) {
  const float lo = x < -87.0f ? -87.0f : x;
  const float clamped = lo > 89.0f ? 89.0f : lo;
  const float shift = 12582912.0f;  // 1.5 2^23: adding it leaves k in the low bits
  const float shifted = clamped * 1.44269504f + shift;
  const float k = shifted - shift;
  // ln 2 in two parts; k times the first is exact.
  const float r = (clamped - k * 0.693145752f) - k * 1.42860677e-6f;
  const float tail =
      (((0.00138145988f * r + 0.00836871658f) * r + 0.041668389f) * r + 0.166665211f) * r +
      0.49999994f;
  const float p = (tail * r) * r + r + 1.0f;
  // 2^k in two factors, since k up to 128 is more than an exponent holds.
  const std::uint32_t bits =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(shift);
  const std::uint32_t first = static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 1);
  const std::uint32_t second = bits - first;
  const float result =
      p * std::bit_cast<float>((first + 127u) << 23) * std::bit_cast<float>((second + 127u) << 23);
  return x < -87.0f ? 0.0f : result;
}
inline double vector_exp(double x) { return std::exp(x); }

// 1 / (1 + exp(-x))
template <class A>
[[gnu::always_inline]] inline A sigmoid(A x) {
  return A(1) / (A(1) + vector_exp(-x));
}

// The standard normal distribution at z: its density and its distribution function.
template <class A>
struct Normal {
  A density;     // exp(-z^2 / 2) / sqrt(2 pi)
  A cumulative;  // (1 + erf(z / sqrt 2)) / 2
};

// P(Z > t) = exp(-t^2 / 2) q(t): q is smooth and falls as 1/t, a polynomial in u = (t - 3) / (t +
// 3). Beyond 12.5, where density and tail are below 1e-34, both are 0.
[[gnu::always_inline]] inline Normal<float> normal(float z) {
  const float magnitude = std::bit_cast<float>(std::bit_cast<std::uint32_t>(z) & 0x7fffffffu);
  const float t = magnitude < 12.5f ? magnitude : 12.5f;
  const float inside = vector_exp(-0.5f * t * t);
  const float e = magnitude < 12.5f ? inside : 0.0f;
  const float u = (t - 3.0f) / (t + 3.0f);
  float q = 5.31618934e-05f;
  q = q * u + 1.1501363e-04f;
  q = q * u - 3.39012826e-04f;
  q = q * u - 9.83288162e-04f;
  q = q * u + 2.90438742e-03f;
  q = q * u + 6.13194238e-03f;
  q = q * u - 4.62132618e-02f;
  q = q * u + 1.23225041e-01f;
  q = q * u - 2.06402615e-01f;
  q = q * u + 1.21513948e-01f;
  const float tail = e * q;
  return {.density = e * 0.398942280f, .cumulative = z < 0.0f ? tail : 1.0f - tail};
}
inline Normal<double> normal(double z) {
  return {.density = std::exp(-0.5 * z * z) * 0.39894228040143267794,
          .cumulative = 0.5 * std::erfc(-z * 0.70710678118654752440)};
}

// gelu(z) = z P(Z < z)        gelu'(z) = P(Z < z) + z density(z)
template <class A>
[[gnu::always_inline]] inline A gelu(A z) {
  return z * normal(z).cumulative;
}
template <class A>
[[gnu::always_inline]] inline A gelu_slope(A z) {
  const Normal<A> at = normal(z);
  return at.cumulative + z * at.density;
}

}  // namespace tilefold::cpu
