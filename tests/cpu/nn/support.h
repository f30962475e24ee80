// What the tests of the CPU's ops share: arrays with NaN inside and around, a device with a number
// of threads, and comparison of gradients with central differences.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "ops/ops.h"
#include "tests/catch.h"

namespace tilefold::test {

using Values = std::vector<double>;

struct Cpu {
  explicit Cpu(int threads = 2) : device(open_cpu_device(threads)), stream(device->make_stream()) {}
  Context context() { return {*device, *stream}; }
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
};

template <class Body>
void as_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::bf16:
      return body(bf16{});
    case DType::f16:
      return body(f16{});
    case DType::f64:
      return body(double{});
    case DType::i32:
      return body(std::int32_t{});
    case DType::i64:
      return body(std::int64_t{});
    case DType::u16:
      return body(std::uint16_t{});
    case DType::u8:
      return body(std::uint8_t{});
  }
}

// A dense array between two guards; every byte starts as 0xff, which is NaN in floating dtypes and
// -1 in signed ones.
class Array {
 public:
  Array() = default;
  Array(DType dtype, Shape shape) : dtype_(dtype), shape_(shape) {
    size_ = static_cast<std::size_t>(shape.numel() * size_of(dtype));
    bytes_.assign(size_ + 2 * kGuard, std::byte{0xff});
  }
  Array(DType dtype, Shape shape, const Values& values) : Array(dtype, shape) {
    REQUIRE(static_cast<std::int64_t>(values.size()) == shape.numel());
    as_type(dtype, [&]<class T>(T) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        T x;
        if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
          x = T(static_cast<float>(values[i]));
        else
          x = static_cast<T>(values[i]);
        std::memcpy(data() + i * sizeof(T), &x, sizeof(T));
      }
    });
  }

  std::byte* data() { return bytes_.data() + kGuard; }
  operator Tensor() { return bytes_.empty() ? Tensor() : Tensor(data(), dtype_, shape_); }
  operator ConstTensor() { return Tensor(*this); }
  std::span<std::byte> span() { return {data(), size_}; }

  // The elements, widened; also checks that nothing was written around them.
  Values values() {
    for (std::size_t i = 0; i < kGuard; ++i) {
      REQUIRE(bytes_[i] == std::byte{0xff});
      REQUIRE(bytes_[bytes_.size() - 1 - i] == std::byte{0xff});
    }
    Values out(static_cast<std::size_t>(shape_.numel()));
    as_type(dtype_, [&]<class T>(T) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        T x;
        std::memcpy(&x, data() + i * sizeof(T), sizeof(T));
        out[i] = static_cast<double>(x);
      }
    });
    return out;
  }
  std::vector<std::byte> bytes() {
    if (bytes_.empty()) return {};
    return {data(), data() + size_};
  }

 private:
  static constexpr std::size_t kGuard = 256;
  DType dtype_ = DType::f32;
  Shape shape_;
  std::size_t size_ = 0;
  std::vector<std::byte> bytes_;
};

inline Array workspace(std::int64_t bytes) { return Array(DType::u8, {bytes}); }

// Normal numbers that depend on the seed alone.
inline Values normal_values(std::int64_t count, unsigned seed, double scale = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0, scale);
  Values out(static_cast<std::size_t>(count));
  for (double& x : out) x = normal(engine);
  return out;
}

// The values as `dtype` can hold them.
inline Values rounded(DType dtype, const Values& values) {
  return Array(dtype, {static_cast<std::int64_t>(values.size())}, values).values();
}

// The error of storing `value` once; f16 has numbers only every 2^-24 near 0.
inline double storage_error(DType dtype, double value) {
  return 1.01 * unit_roundoff(dtype) * std::abs(value) + (dtype == DType::f16 ? 0x1p-25 : 1e-37);
}

inline double dot(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// gradient[i] against (loss(x + h e_i) - loss(x - h e_i)) / 2h. The difference has errors of h^2
// times a third derivative and of eps / h times the loss's size: near 1e-9 for h = 1e-5 and sums of
// a few hundred terms of order 1; 2e-7 leaves room, and a wrong term is of order 1.
inline void check_gradient(const std::function<double(const Values&)>& loss, Values x,
                           const Values& gradient) {
  REQUIRE(x.size() == gradient.size());
  const double h = 1e-5;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + h;
    const double above = loss(x);
    x[i] = at - h;
    const double below = loss(x);
    x[i] = at;
    const double difference = (above - below) / (2 * h);
    INFO("element " << i << " gradient " << gradient[i] << " difference " << difference);
    REQUIRE(std::abs(gradient[i] - difference) <= 2e-7 * (1 + std::abs(difference)));
  }
}

// |actual - expected| <= bound, element by element; NaN fails.
inline void check_within(const Values& actual, const Values& expected, const Values& bound) {
  REQUIRE(actual.size() == expected.size());
  REQUIRE(actual.size() == bound.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    if (!(std::abs(actual[i] - expected[i]) <= bound[i]))
      FAIL("element " << i << ": " << actual[i] << " instead of " << expected[i] << ", off by "
                      << std::abs(actual[i] - expected[i]) << " > " << bound[i]);
}

// Runs `op` with 1, 2 and 5 threads; the bytes it returns must be equal.
inline void check_thread_counts(const std::function<std::vector<std::byte>(Context)>& op) {
  Cpu one(1);
  const std::vector<std::byte> expected = op(one.context());
  for (int threads : {2, 5}) {
    Cpu many(threads);
    INFO(threads << " threads");
    REQUIRE(op(many.context()) == expected);
  }
}

}  // namespace tilefold::test
