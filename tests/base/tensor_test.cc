#include "base/tensor.h"

#include <vector>

#include "tests/catch.h"

using namespace tilefold;

TEST_CASE("slices and splits address the same elements") {
  std::vector<float> x(2 * 3 * 8);
  Tensor t(x.data(), DType::f32, {2, 3, 8});
  CHECK(t.dense());
  CHECK(t.shape.text() == "[2, 3, 8]");
  Tensor s = t.sliced(2, 4, 4);
  CHECK_FALSE(s.dense());
  CHECK(s.as<float>() == x.data() + 4);
  CHECK(t.reshaped({6, 8}).strides[0] == 8);
  CHECK_THROWS(s.reshaped({24}));
  CHECK_THROWS(t.sliced(1, 2, 2));
  CHECK_THROWS(t.as<double>());
}

TEST_CASE("sizes are 64-bit") {
  Tensor t(nullptr, DType::f32, {70000, 70000});
  CHECK(t.bytes() == 19600000000);
  CHECK(Shape{1 << 28, 1 << 28}.numel() == kMostElements);
}

TEST_CASE("sizes beyond every memory are an error, not a smaller number") {
  const std::int64_t n = std::int64_t{1} << 32;
  CHECK_THROWS_AS((Shape{2, n, n}.numel()), UsageError);
  CHECK_THROWS_AS((Shape{n, n, n, n}.numel()), UsageError);  // 0 in 64 bits
  CHECK_THROWS_AS(product({1 << 29, 1 << 28}), UsageError);
  CHECK(Shape{n, n, n, 0}.numel() == 0);
  CHECK(product({}) == 1);
}
