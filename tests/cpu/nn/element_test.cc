// The branch-free conversions that loops use have the bits of those of base/dtype.h.
#include "cpu/nn/element.h"

#include <cmath>
#include <random>

#include "tests/catch.h"

namespace tilefold::test {
namespace {

template <class T>
void check_load() {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    T x;
    x.bits = static_cast<std::uint16_t>(bits);
    const float expected = static_cast<float>(x);
    if (std::bit_cast<std::uint32_t>(cpu::load(x)) != std::bit_cast<std::uint32_t>(expected))
      FAIL("bits " << bits << ": " << cpu::load(x) << " instead of " << expected);
  }
}

template <class T>
void check_store(float x) {
  T actual;
  cpu::store(actual, x);
  const T expected(x);
  const bool both_nan = std::isnan(static_cast<float>(actual)) && std::isnan(x);
  if (actual.bits != expected.bits && !both_nan)
    FAIL(x << " is stored as bits " << actual.bits << " instead of " << expected.bits);
}

TEST_CASE("load: all 65536 values of bf16 and f16") {
  check_load<bf16>();
  check_load<f16>();
}

TEST_CASE("store: random float32 bits, and all that lie at or halfway between 16-bit values") {
  std::mt19937 engine(1);
  for (int i = 0; i < 2000000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(engine()));
    check_store<bf16>(x);
    check_store<f16>(x);
  }
  for (std::uint32_t bits = 0; bits < 65536; ++bits)
    for (const std::uint32_t below : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      check_store<bf16>(std::bit_cast<float>(bits << 16 | below));
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    f16 low, high;
    low.bits = static_cast<std::uint16_t>(bits);
    high.bits = static_cast<std::uint16_t>(bits + 1);
    const float a = static_cast<float>(low);
    const float b = bits + 1 < 0x7c00 ? static_cast<float>(high) : 65536.0f;
    const float half = a + (b - a) / 2;
    for (const float x : {a, half, std::nextafter(half, 0.0f), std::nextafter(half, b)}) {
      check_store<f16>(x);
      check_store<f16>(-x);
    }
  }
}

}  // namespace
}  // namespace tilefold::test
