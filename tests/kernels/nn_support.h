// What the tests of kernels/nn share: arrays on a device between guards, prefilled with NaN, and
// the comparison of an op on the GPU with the same op on the CPU, in its dtype and in float64.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/cpu/nn/support.h"
#include "tests/kernels/gpu.h"

namespace tilefold::test {

// An array of a device. All bytes start as 0xff, NaN in floating dtypes; guards lie around it.
class Place {
 public:
  Place(Context ctx, DType dtype, const Shape& shape)
      : ctx_(ctx),
        tensor_(nullptr, dtype, shape),
        memory_(ctx.device.allocate(shape.numel() * size_of(dtype) + 2 * kGuard)) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(memory_->bytes()), std::byte{0xff});
    send(bytes);
    tensor_.data = memory_->data() + kGuard;
  }
  Place(Context ctx, DType dtype, const Shape& shape, const Values& values)
      : Place(ctx, dtype, shape) {
    Array host(dtype, shape, values);
    ctx.device.copy_to_device(ctx.stream, tensor_.data, host.data(), tensor_.bytes());
    ctx.stream.synchronize();
  }

  operator Tensor() const { return tensor_; }
  operator ConstTensor() const { return tensor_; }
  std::span<std::byte> span() const {
    return {static_cast<std::byte*>(tensor_.data), static_cast<std::size_t>(tensor_.bytes())};
  }

  // The elements; also checks that nothing was written around them.
  Values values() const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(memory_->bytes()));
    ctx_.device.copy_to_host(ctx_.stream, bytes.data(), memory_->data(), memory_->bytes());
    ctx_.stream.synchronize();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < kGuard; ++i)
      kept += (bytes[i] & bytes[bytes.size() - 1 - i]) == std::byte{0xff} ? 1 : 0;
    REQUIRE(kept == kGuard);
    Array host(tensor_.dtype, tensor_.shape);
    std::memcpy(host.data(), bytes.data() + kGuard, static_cast<std::size_t>(tensor_.bytes()));
    return host.values();
  }

 private:
  static constexpr std::int64_t kGuard = 256;
  void send(const std::vector<std::byte>& bytes) {
    ctx_.device.copy_to_device(ctx_.stream, memory_->data(), bytes.data(), memory_->bytes());
    ctx_.stream.synchronize();
  }
  Context ctx_;
  Tensor tensor_;
  std::unique_ptr<Memory> memory_;
};

// A StepState in memory of the device.
class PlacedState {
 public:
  PlacedState(Context ctx, const StepState& state) : memory_(ctx.device.allocate(sizeof state)) {
    ctx.device.copy_to_device(ctx.stream, memory_->data(), &state, sizeof state);
    ctx.stream.synchronize();
  }
  const StepState* get() const { return reinterpret_cast<const StepState*>(memory_->data()); }

 private:
  std::unique_ptr<Memory> memory_;
};

inline Values integers(std::int64_t count, unsigned seed, std::int64_t low, std::int64_t high) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<std::int64_t> draw(low, high - 1);
  Values out(static_cast<std::size_t>(count));
  for (double& x : out) x = static_cast<double>(draw(engine));
  return out;
}

// An op run on a device: with its elements in `dtype`, and the residual stream in `wide`. Returns
// all outputs. Inputs must be those that the 16-bit types hold, so that all runs start alike.
using Run = std::function<std::vector<Values>(Context, DType dtype, DType wide)>;

inline double largest_error(const Values& got, const Values& exact) {
  double most = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double error = std::abs(got[i] - exact[i]);
    if (!(error <= most)) most = error;  // NaN stays
  }
  return most;
}

// Rule 10: the GPU's error against float64 is at most twice that of the CPU's plain loops in the
// same dtype, plus a floor of 4 roundings of the largest value. Runs twice: the same bits.
inline void check_gpu(Context gpu, const Run& run, DType dtype, DType wide) {
  Cpu cpu;
  const std::vector<Values> exact = run(cpu.context(), DType::f64, DType::f64);
  const std::vector<Values> plain = run(cpu.context(), dtype, wide);
  const std::vector<Values> got = run(gpu, dtype, wide), again = run(gpu, dtype, wide);
  REQUIRE(got.size() == exact.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("output " << i << ", " << name_of(dtype) << ", residual " << name_of(wide));
    double size = 0;
    for (const double x : exact[i]) size = std::max(size, std::abs(x));
    const double allowed = 2 * largest_error(plain[i], exact[i]) + 4 * unit_roundoff(dtype) * size;
    const double error = largest_error(got[i], exact[i]);
    CHECK(error <= allowed);
    CHECK(got[i] == again[i]);
  }
}

// Every dtype with the residual stream in it and in float32.
inline void check_gpu(const Run& run) {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    check_gpu(gpu.context(), run, dtype, dtype);
    if (dtype != DType::f32) check_gpu(gpu.context(), run, dtype, DType::f32);
  }
}

// Numbers that every floating dtype holds.
inline Values even_values(std::int64_t count, unsigned seed, double scale = 1) {
  Values out = normal_values(count, seed, scale);
  for (double& x : out)
    x = static_cast<double>(
        static_cast<float>(f16(static_cast<float>(bf16(static_cast<float>(x))))));
  return out;
}

}  // namespace tilefold::test
