// Rotary angles: made in float64, right far out, where float32 angles are off by 0.03.
#include <cmath>
#include <vector>

#include "contract/pointwise.h"
#include "tests/catch.h"

namespace tilefold {
namespace {

TEST_CASE("rope table: cos then sin of position * base^(-2c/d), to a float32 rounding") {
  const std::int64_t context = 1 << 20, d = 6;
  std::vector<float> table(static_cast<std::size_t>(context * d));
  make_rope_table(context, d, 10000, Tensor(table.data(), DType::f32, {context, d}));
  for (const std::int64_t i : {std::int64_t{0}, std::int64_t{1}, std::int64_t{999983}, context - 1})
    for (std::int64_t c = 0; c < d / 2; ++c) {
      // In long double: an error of the float64 angle itself would show at position 1M.
      const long double angle =
          static_cast<long double>(i) *
          std::pow(10000.0L, -2.0L * static_cast<long double>(c) / static_cast<long double>(d));
      const auto at = static_cast<std::size_t>(i * d + c);
      REQUIRE(std::abs(table[at] - static_cast<double>(std::cos(angle))) < 1e-7);
      REQUIRE(std::abs(table[at + d / 2] - static_cast<double>(std::sin(angle))) < 1e-7);
    }
}

TEST_CASE("rope table: float64 keeps more") {
  std::vector<double> table(2 * 2);
  make_rope_table(2, 2, 10000, Tensor(table.data(), DType::f64, {2, 2}));
  REQUIRE(table[2] == std::cos(1.0));
  REQUIRE(table[3] == std::sin(1.0));
}

TEST_CASE("rope table: what cannot be is refused") {
  std::vector<float> table(12);
  const Tensor ok(table.data(), DType::f32, {4, 3});
  REQUIRE_THROWS_WITH(make_rope_table(4, 3, 10000, ok),
                      "make_rope_table: d is 3; an even width above 0 is needed");
  REQUIRE_THROWS_WITH(make_rope_table(6, 2, 0, Tensor(table.data(), DType::f32, {6, 2})),
                      "make_rope_table: base is 0; a finite value above 0 is needed");
  REQUIRE_THROWS_AS(make_rope_table(2, 4, 10000, ok), Error);
  REQUIRE_THROWS_AS(make_rope_table(6, 2, 10000, Tensor(table.data(), DType::i32, {6, 2})), Error);
}

}  // namespace
}  // namespace tilefold
