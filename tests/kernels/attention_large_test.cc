// Offsets beyond 2^31 elements: two batch elements that far apart give the bits of two neighbouring
// ones. Needs 40 GB of free device memory, of which little is touched.
#include <cstdio>

#include "ops/ops.h"
#include "tests/catch.h"
#include "tests/kernels/gpu_run.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

constexpr std::int64_t kBatch = 2, kSeq = 80, kHeads = 2, kWidth = 64;
constexpr std::int64_t kElement = kSeq * kHeads * kWidth;  // of a batch element

// A [2, seq, heads, d] bfloat16 array whose batch elements lie `apart` elements from each other.
class Spread {
 public:
  Spread(Context ctx, std::int64_t apart) : ctx_(ctx), apart_(apart) {
    memory_ = ctx.device.allocate(2 * (apart + kElement));
  }
  Tensor view() const {
    return Tensor(memory_->data(), DType::bf16, Shape{kBatch, kSeq, kHeads, kWidth},
                  Shape{apart_, kHeads * kWidth, kWidth, 1});
  }
  void set(const std::vector<bf16>& x) {
    for (std::int64_t b = 0; b < kBatch; ++b)
      ctx_.device.copy_to_device(ctx_.stream, memory_->data() + 2 * b * apart_,
                                 x.data() + b * kElement, 2 * kElement);
    ctx_.stream.synchronize();
  }
  std::vector<std::uint16_t> get() const {
    std::vector<std::uint16_t> x(kBatch * kElement);
    for (std::int64_t b = 0; b < kBatch; ++b)
      ctx_.device.copy_to_host(ctx_.stream, x.data() + b * kElement,
                               memory_->data() + 2 * b * apart_, 2 * kElement);
    ctx_.stream.synchronize();
    return x;
  }

 private:
  Context ctx_;
  std::int64_t apart_;
  std::unique_ptr<Memory> memory_;
};

// o, dq, dk, dv.
std::vector<std::vector<std::uint16_t>> attend(Context ctx, const Problem& p, const Inputs& in,
                                               std::int64_t apart) {
  Spread q(ctx, apart), k(ctx, apart), v(ctx, apart), d_o(ctx, apart);
  Spread o(ctx, apart), dq(ctx, apart), dk(ctx, apart), dv(ctx, apart);
  const auto narrow = [](const std::vector<double>& x) {
    std::vector<bf16> y;
    for (const double value : x) y.emplace_back(static_cast<float>(value));
    return y;
  };
  q.set(narrow(in.q)), k.set(narrow(in.k)), v.set(narrow(in.v)), d_o.set(narrow(in.d_o));
  const auto constants = ctx.device.allocate(2 * 4 * kBatch * kHeads * kSeq);
  const Shape rows{kBatch, kHeads, kSeq};
  AttentionForward f;
  f.q = q.view(), f.k = k.view(), f.v = v.view(), f.o = o.view();
  f.m = Tensor(constants->data(), DType::f32, rows);
  f.l = Tensor(constants->data() + 4 * kBatch * kHeads * kSeq, DType::f32, rows);
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

}  // namespace

TEST_CASE("offsets beyond 2^31 elements") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  if (gpu.device->free_bytes() < 40'000'000'000) {
    std::printf("SKIPPED: 40 GB of free device memory are needed\n");
    return;
  }
  using enum AttentionStrategy;
  for (const AttentionStrategy strategy : {tiled, split, decode, naive}) {
    Problem p;
    p.batch = kBatch, p.seq_q = p.seq_k = kSeq, p.heads = p.kv_heads = kHeads, p.d = kWidth;
    p.dtype = DType::bf16;
    p.options.strategy = strategy;
    p.options.causal = true;
    const Inputs inputs = normal_inputs(p, 12);
    const std::int64_t far = (1ll << 31) + 4096;
    CHECK(attend(gpu.context(), p, inputs, kElement) == attend(gpu.context(), p, inputs, far));
  }
}
