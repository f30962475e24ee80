// What takes much: offsets beyond 2^31 elements (two batch elements that far apart give the bits of
// two neighbouring ones; needs 40 GB of free device memory, of which little is touched), and a
// thousand repeats of every strategy.
#include <array>
#include <cstdio>

#include "ops/ops.h"
#include "tests/catch.h"
#include "tests/kernels/gpu_run.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

constexpr std::int64_t kBatch = 2;

// Elements of a batch element.
std::int64_t element(const Problem& p) { return p.seq_q * p.heads * p.d; }

// A [2, seq, heads, d] bfloat16 array whose batch elements lie `apart` elements from each other.
class Spread {
 public:
  Spread(Context ctx, const Problem& p, std::int64_t apart)
      : ctx_(ctx), shape_(p.q_shape()), apart_(apart), element_(element(p)) {
    memory_ = ctx.device.allocate(2 * (apart + element_));
  }
  Tensor view() const {
    return Tensor(memory_->data(), DType::bf16, shape_,
                  Shape{apart_, shape_[2] * shape_[3], shape_[3], 1});
  }
  void set(const std::vector<bf16>& x) {
    for (std::int64_t b = 0; b < kBatch; ++b)
      ctx_.device.copy_to_device(ctx_.stream, memory_->data() + 2 * b * apart_,
                                 x.data() + b * element_, 2 * element_);
    ctx_.stream.synchronize();
  }
  std::vector<std::uint16_t> get() const {
    std::vector<std::uint16_t> x(static_cast<std::size_t>(kBatch * element_));
    for (std::int64_t b = 0; b < kBatch; ++b)
      ctx_.device.copy_to_host(ctx_.stream, x.data() + b * element_,
                               memory_->data() + 2 * b * apart_, 2 * element_);
    ctx_.stream.synchronize();
    return x;
  }

 private:
  Context ctx_;
  Shape shape_;
  std::int64_t apart_, element_;
  std::unique_ptr<Memory> memory_;
};

// o, dq, dk, dv.
std::vector<std::vector<std::uint16_t>> attend(Context ctx, const Problem& p, const Inputs& in,
                                               std::int64_t apart) {
  Spread q(ctx, p, apart), k(ctx, p, apart), v(ctx, p, apart), d_o(ctx, p, apart);
  Spread o(ctx, p, apart), dq(ctx, p, apart), dk(ctx, p, apart), dv(ctx, p, apart);
  const auto narrow = [](const std::vector<double>& x) {
    std::vector<bf16> y;
    for (const double value : x) y.emplace_back(static_cast<float>(value));
    return y;
  };
  q.set(narrow(in.q)), k.set(narrow(in.k)), v.set(narrow(in.v)), d_o.set(narrow(in.d_o));
  const std::int64_t row_bytes = 4 * kBatch * p.heads * p.seq_q;
  const auto constants = ctx.device.allocate(2 * row_bytes);
  const Shape rows{kBatch, p.heads, p.seq_q};
  AttentionForward f;
  f.q = q.view(), f.k = k.view(), f.v = v.view(), f.o = o.view();
  f.m = Tensor(constants->data(), DType::f32, rows);
  f.l = Tensor(constants->data() + row_bytes, DType::f32, rows);
  f.options = p.options;
  const auto work = [&](const AttentionProblem& x) {
    return ctx.device.allocate(ops::attention_workspace(x, ctx.device.info()));
  };
  const auto forward_work = work(problem_of(f));
  f.workspace = {forward_work->data(), static_cast<std::size_t>(forward_work->bytes())};
  ops::attention_forward(ctx, f);

  AttentionBackward b;
  b.q = f.q, b.k = f.k, b.v = f.v, b.o = f.o, b.m = f.m, b.l = f.l, b.d_o = d_o.view();
  b.dq = dq.view(), b.dk = dk.view(), b.dv = dv.view();
  b.options = f.options;
  const auto backward_work = work(problem_of(b));
  b.workspace = {backward_work->data(), static_cast<std::size_t>(backward_work->bytes())};
  ops::attention_backward(ctx, b);
  return {o.get(), dq.get(), dk.get(), dv.get()};
}

Problem problem(AttentionStrategy strategy, std::int64_t seq, std::int64_t heads) {
  Problem p;
  p.batch = kBatch, p.seq_q = p.seq_k = seq, p.heads = p.kv_heads = heads, p.d = 64;
  p.dtype = DType::bf16;
  p.options.strategy = strategy;
  p.options.causal = true;
  return p;
}

using enum AttentionStrategy;
constexpr std::array kStrategies = {tiled, split, decode, naive};

}  // namespace

TEST_CASE("offsets beyond 2^31 elements") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  if (gpu.device->free_bytes() < 40'000'000'000) {
    std::printf("SKIPPED: 40 GB of free device memory are needed\n");
    return;
  }
  for (const AttentionStrategy strategy : kStrategies) {
    const Problem p = problem(strategy, 80, 2);
    const Inputs inputs = normal_inputs(p, 12);
    const std::int64_t far = (1ll << 31) + 4096;
    CHECK(attend(gpu.context(), p, inputs, element(p)) == attend(gpu.context(), p, inputs, far));
  }
}

TEST_CASE("a thousand repeats give the same bits") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const AttentionStrategy strategy : kStrategies) {
    const Problem p = problem(strategy, 300, 4);
    const Inputs inputs = normal_inputs(p, 13);
    const auto first = attend(gpu.context(), p, inputs, element(p));
    for (int i = 0; i < 1000; ++i) REQUIRE(attend(gpu.context(), p, inputs, element(p)) == first);
  }
}
