// Global norm, AdamW, fill and copy on the GPU against the CPU.
#include "tests/kernels/nn_support.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

// Sizes about a block's, and more tensors than one launch takes.
std::vector<std::int64_t> sizes() {
  std::vector<std::int64_t> out{1, 3, 4095, 4096, 4097, 16384, 16385, 100000};
  for (int i = 0; i < 520; ++i) out.push_back(5 + i % 7);
  return out;
}

struct Update {
  double clip = 1;
  double targets = 17;
  double poison = 0;  // added to one gradient
};

// weight: the 16-bit copy's dtype; f32: none.
std::vector<Values> run_update(const Update& u, Context ctx, DType dtype, DType weight) {
  const DType sums = sum_dtype(dtype);
  std::vector<Place> places;
  places.reserve(5 * sizes().size());
  std::vector<AdamWParameter> parameters;
  std::vector<ConstTensor> grads;
  unsigned seed = 1;
  for (const std::int64_t size : sizes()) {
    const auto place = [&](double scale, bool positive) {
      Values values = even_values(size, seed++, scale);
      for (double& x : values) x = positive ? std::abs(x) : x;
      if (scale == 2 && u.poison != 0) values[0] += u.poison;
      return Tensor(places.emplace_back(ctx, sums, Shape{size}, values));
    };
    AdamWParameter p;
    p.master = place(1, false);
    p.grad = place(2, false);
    p.m = place(0.1, false);
    p.v = place(0.2, true);
    p.decay = size % 2 == 0;
    if (weight != DType::f32 && dtype != DType::f64)
      p.weight = places.emplace_back(ctx, weight, Shape{size});
    parameters.push_back(p);
    grads.push_back(p.grad);
  }
  std::int64_t elements = 0;
  for (const std::int64_t size : sizes()) elements += size;
  const Place sum(ctx, DType::f64, {1});
  const Place workspace(ctx, DType::u8,
                        {grad_square_sum_workspace(
                            elements, static_cast<std::int64_t>(grads.size()), ctx.device.info())});
  ops::grad_square_sum(ctx, {.grads = grads, .sum = sum, .workspace = workspace.span()});
  const PlacedState state(ctx, {.step = 4,
                                .target_tokens = u.targets,
                                .learning_rate = 0.01,
                                .bias_correction1 = 0.4,
                                .bias_correction2 = 0.2});
  ops::adamw(ctx, {.parameters = parameters,
                   .grad_square_sum = sum,
                   .state = state.get(),
                   .beta2 = 0.99,
                   .clip = u.clip});
  workspace.values();  // the guards
  std::vector<Values> out{sum.values()};
  for (const Place& place : places) out.push_back(place.values());
  return out;
}

}  // namespace

TEST_CASE("square sum and AdamW over many tensors, with and without clipping and 16-bit copies") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const double clip : {0.0, 1.0})
    for (const DType weight : {DType::f32, DType::bf16, DType::f16}) {
      Cpu cpu;
      const Update u{.clip = clip};
      const auto plain = run_update(u, cpu.context(), DType::f32, weight);
      const auto got = run_update(u, gpu.context(), DType::f32, weight);
      REQUIRE(got == run_update(u, gpu.context(), DType::f32, weight));
      REQUIRE(got.size() == plain.size());
      CHECK(got[0][0] == Approx(plain[0][0]).epsilon(1e-12));
      std::size_t wrong = 0;
      for (std::size_t i = 1; i < got.size(); ++i)
        for (std::size_t e = 0; e < got[i].size(); ++e) {
          // Fused multiply-adds round once less; a 16-bit copy may fall to the next number.
          const bool copy = weight != DType::f32 && i % 5 == 0;
          const double eps = copy ? 2 * unit_roundoff(weight) : 4e-7;
          wrong += std::abs(got[i][e] - plain[i][e]) <= eps * (1 + std::abs(plain[i][e])) ? 0 : 1;
        }
      CHECK(wrong == 0);
    }
}

TEST_CASE("a norm that is not finite, or no targets: nothing is written") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const Update& u :
       {Update{.poison = std::numeric_limits<double>::infinity()},
        Update{.poison = std::numeric_limits<double>::quiet_NaN()}, Update{.targets = 0}}) {
    Cpu cpu;
    const auto plain = run_update(u, cpu.context(), DType::f32, DType::f32);
    const auto got = run_update(u, gpu.context(), DType::f32, DType::f32);
    for (std::size_t i = 1; i < got.size(); ++i)
      for (std::size_t e = 0; e < got[i].size(); ++e)
        REQUIRE((got[i][e] == plain[i][e] || std::isnan(plain[i][e])));
  }
}

TEST_CASE("fill and copy: every dtype, any strides") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  const Context ctx = gpu.context();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64,
                            DType::u16, DType::u8})
    for (const double value : {0.0, 3.0}) {
      const Place x(ctx, dtype, {1001});
      ops::fill(ctx, {x, value});
      CHECK(x.values() == Values(1001, value));
    }
  const Shape shape{3, 5, 2, 7};
  for (const DType from : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const DType to : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      const Values values = even_values(210, 1);
      const Place src(ctx, from, shape, values), dst(ctx, to, shape);
      ops::copy(ctx, {.src = src, .dst = dst});
      CHECK(dst.values() == values);
      // Into every second row of a larger array, from reversed dimensions.
      const Place wide(ctx, to, {3, 5, 4, 7}, Values(420, 0));
      Tensor rows = wide;
      rows = Tensor(rows.data, to, shape, {140, 28, 14, 1});
      ops::copy(ctx, {.src = src, .dst = rows});
      const Values got = wide.values();
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < 420; ++i) {
        const std::size_t row = i / 7, expected = row / 2 * 7 + i % 7;
        wrong += got[i] == (row % 2 == 0 ? values[expected] : 0.0) ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
}
