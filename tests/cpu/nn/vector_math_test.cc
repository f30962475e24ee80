// The float32 functions that the compiler vectorizes, against the standard library in double.
#include "cpu/nn/vector_math.h"

#include <algorithm>
#include <limits>

#include "tests/catch.h"

namespace tilefold::test {
namespace {

// Distance in units of the last place of a float32 near `exact`.
double ulps(float actual, double exact) {
  const float near = static_cast<float>(exact);
  const double ulp = static_cast<double>(std::nextafter(std::abs(near), INFINITY)) -
                     static_cast<double>(std::abs(near));
  return std::abs(static_cast<double>(actual) - exact) / ulp;
}

TEST_CASE("vector_exp is within 2 ulp") {
  double worst = 0;
  for (double x = -87; x < 88.7; x += 0.000977) {
    const float at = static_cast<float>(x);
    worst = std::max(worst, ulps(cpu::vector_exp(at), std::exp(static_cast<double>(at))));
  }
  INFO("worst " << worst);
  REQUIRE(worst <= 2.0);
}

TEST_CASE("vector_exp at the ends: never subnormal") {
  const float infinity = std::numeric_limits<float>::infinity();
  REQUIRE(cpu::vector_exp(0.0f) == 1.0f);
  REQUIRE(cpu::vector_exp(infinity) == infinity);
  REQUIRE(cpu::vector_exp(89.0f) == infinity);
  REQUIRE(cpu::vector_exp(3e38f) == infinity);
  REQUIRE(cpu::vector_exp(-87.0f) >= std::numeric_limits<float>::min());
  for (const float x : {-infinity, -3e38f, -104.0f, -90.0f, std::nextafter(-87.0f, -100.0f)})
    REQUIRE(cpu::vector_exp(x) == 0.0f);
  REQUIRE(std::isnan(cpu::vector_exp(std::nanf(""))));
}

TEST_CASE("sigmoid is within 4 ulp and goes to 0 and 1") {
  double worst = 0;
  for (double x = -87; x < 87; x += 0.00131) {
    const float at = static_cast<float>(x);
    worst = std::max(worst, ulps(cpu::sigmoid(at), 1 / (1 + std::exp(-static_cast<double>(at)))));
  }
  INFO("worst " << worst);
  REQUIRE(worst <= 4.0);
  REQUIRE(cpu::sigmoid(-1000.0f) == 0.0f);
  REQUIRE(cpu::sigmoid(1000.0f) == 1.0f);
}

TEST_CASE("the normal distribution: relative error of a few ulp, growing as z^2 in the tails") {
  for (double z = -13; z < 13; z += 0.00037) {
    const float at = static_cast<float>(z);
    const double exact = static_cast<double>(at);
    const cpu::Normal<float> normal = cpu::normal(at);
    const double cumulative = 0.5 * std::erfc(-exact / std::sqrt(2.0));
    const double density = std::exp(-exact * exact / 2) / std::sqrt(2 * 3.14159265358979323846);
    const double allowed = (4 + exact * exact / 2) * 0x1p-24 * 2;
    INFO("z " << z);
    if (std::abs(at) < 12.5f)
      REQUIRE(std::abs(static_cast<double>(normal.cumulative) - cumulative) <=
              allowed * cumulative);
    if (std::abs(at) < 12.5f)
      REQUIRE(std::abs(static_cast<double>(normal.density) - density) <= allowed * density);
  }
}

TEST_CASE("gelu at the ends") {
  REQUIRE(cpu::gelu(0.0f) == 0.0f);
  REQUIRE(cpu::gelu(30.0f) == 30.0f);
  REQUIRE(cpu::gelu(-30.0f) == 0.0f);
  REQUIRE(cpu::gelu_slope(30.0f) == 1.0f);
  REQUIRE(cpu::gelu_slope(-30.0f) == 0.0f);
  REQUIRE(std::isnan(cpu::gelu(std::nanf(""))));
  REQUIRE(std::isnan(cpu::gelu_slope(std::nanf(""))));
}

}  // namespace
}  // namespace tilefold::test
