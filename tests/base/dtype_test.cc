#include "base/dtype.h"
#include "base/error.h"

#include <cmath>
#include <limits>

#include "tests/catch.h"

using namespace tilefold;

TEST_CASE("every 16-bit pattern survives widening and rounding back") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    bf16 b;
    b.bits = static_cast<std::uint16_t>(bits);
    f16 h;
    h.bits = static_cast<std::uint16_t>(bits);
    if (!std::isnan(static_cast<float>(b))) CHECK(bf16(static_cast<float>(b)).bits == bits);
    if (!std::isnan(static_cast<float>(h))) CHECK(f16(static_cast<float>(h)).bits == bits);
  }
}

TEST_CASE("rounding is to nearest, ties to even") {
  CHECK(bf16(1.0f + 0x1p-8f).bits == bf16(1.0f).bits);            // tie, even below
  CHECK(static_cast<float>(bf16(1.0f + 3 * 0x1p-8f)) == 1.0f + 0x1p-6f);  // tie, even above
  CHECK(static_cast<float>(f16(1.0f + 0x1p-11f)) == 1.0f);
  CHECK(static_cast<float>(f16(1.0f + 3 * 0x1p-11f)) == 1.0f + 0x1p-9f);
  CHECK(static_cast<float>(f16(65519.0f)) == 65504.0f);
  CHECK(std::isinf(static_cast<float>(f16(65520.0f))));
  CHECK(static_cast<float>(f16(0x1p-25f)) == 0.0f);          // half of the smallest, tie to even
  CHECK(static_cast<float>(f16(0x1.8p-25f)) == 0x1p-24f);
  CHECK(static_cast<float>(f16(-0x1p-24f)) == -0x1p-24f);
}

TEST_CASE("NaN and infinity stay what they are") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = INFINITY;
  CHECK(std::isnan(static_cast<float>(bf16(nan))));
  CHECK(std::isnan(static_cast<float>(f16(nan))));
  CHECK(static_cast<float>(bf16(-inf)) == -inf);
  CHECK(static_cast<float>(f16(-inf)) == -inf);
  CHECK(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("names go both ways; an unknown one is a usage error") {
  for (DType d : {DType::f32, DType::bf16, DType::f16, DType::f64}) CHECK(parse_dtype(name_of(d)) == d);
  CHECK_THROWS_AS(parse_dtype("float"), UsageError);
}
