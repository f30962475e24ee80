// Linear layers and the loss head on the GPU against the CPU.
#include "tests/kernels/nn_support.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

struct LinearCase {
  std::int64_t tokens, in, out, pad;  // pad: elements between rows of x, y and their gradients
  bool bias, gelu, to_float;
};

// Rows [tokens, width] that lie `pad` elements apart.
Tensor padded(const Place& place, std::int64_t tokens, std::int64_t width) {
  Tensor t = place;
  return Tensor(t.data, t.dtype, {tokens, width}, {t.shape[1], 1});
}

std::vector<Values> run_linear(const LinearCase& l, Context ctx, DType dtype) {
  const DType sums = sum_dtype(dtype), y_dtype = l.to_float ? sums : dtype;
  const Shape in_rows{l.tokens, l.in + l.pad}, out_rows{l.tokens, l.out + l.pad};
  const auto normal = [&](const Shape& shape, unsigned seed, double scale) {
    return even_values(shape.numel(), seed, scale);
  };
  const double small = 1 / std::sqrt(static_cast<double>(l.in));
  const Place x(ctx, dtype, in_rows, normal(in_rows, 1, 1));
  const Place weight(ctx, dtype, {l.out, l.in}, even_values(l.out * l.in, 2, small));
  const Place bias(ctx, dtype, {l.out}, even_values(l.out, 3));
  const Place y(ctx, y_dtype, out_rows, normal(out_rows, 9, 1));
  const Place pre(ctx, dtype, out_rows, normal(out_rows, 10, 1));
  const Place workspace(
      ctx, DType::u8,
      {linear_workspace({.tokens = l.tokens, .in = l.in, .out = l.out, .dtype = dtype},
                        ctx.device.info())});
  LinearForward f;
  f.x = padded(x, l.tokens, l.in);
  f.weight = weight;
  if (l.bias) f.bias = bias;
  f.y = padded(y, l.tokens, l.out);
  if (l.gelu) f.epilogue = Epilogue::gelu, f.pre = padded(pre, l.tokens, l.out);
  f.workspace = workspace.span();
  ops::linear_forward(ctx, f);

  const Place dy(ctx, dtype, out_rows, normal(out_rows, 4, 1));
  const Place x_pre(ctx, dtype, in_rows, normal(in_rows, 5, 1));
  const Place dx(ctx, dtype, in_rows, normal(in_rows, 11, 1));
  const Place dweight(ctx, sums, {l.out, l.in}, even_values(l.out * l.in, 6));
  const Place dbias(ctx, sums, {l.out}, even_values(l.out, 7));
  LinearBackward b;
  b.dy = padded(dy, l.tokens, l.out);
  b.x = f.x;
  b.weight = weight;
  if (l.gelu) b.x_pre = padded(x_pre, l.tokens, l.in);
  b.dx = padded(dx, l.tokens, l.in);
  b.dweight = dweight;
  if (l.bias) b.dbias = dbias;
  b.workspace = workspace.span();
  ops::linear_backward(ctx, b);
  workspace.values();  // the guards
  return {y.values(), pre.values(), dx.values(), dweight.values(), dbias.values()};
}

}  // namespace

TEST_CASE("linear: odd and even sizes, strided rows, bias, GELU, float32 outputs") {
  for (const LinearCase& l :
       {LinearCase{1, 1, 1, 0, true, false, false}, LinearCase{5, 7, 3, 0, true, true, false},
        LinearCase{64, 64, 192, 0, false, false, false},
        LinearCase{1, 768, 2305, 0, true, true, false},
        LinearCase{1, 2056, 77, 8, true, false, true},
        LinearCase{130, 96, 40, 8, true, true, false},
        LinearCase{33, 65, 129, 3, true, true, false},
        LinearCase{200, 128, 65, 0, true, false, true},
        LinearCase{2100, 256, 512, 0, true, true, false}}) {
    INFO(l.tokens << " tokens, " << l.in << " to " << l.out);
    check_gpu([&](Context ctx, DType dtype, DType) { return run_linear(l, ctx, dtype); });
  }
}

namespace {

struct HeadCase {
  std::int64_t tokens, width, vocab;
  bool gradients;
};

std::vector<Values> run_head(const HeadCase& h, Context ctx, DType dtype) {
  const DType sums = sum_dtype(dtype);
  Values chosen = integers(h.tokens, 1, 0, h.vocab);
  for (std::size_t t = 0; t < chosen.size(); t += 3) chosen[t] = -1;
  const double small = 2 / std::sqrt(static_cast<double>(h.width));
  const Place hidden(ctx, dtype, {h.tokens, h.width}, even_values(h.tokens * h.width, 2));
  const Place weight(ctx, dtype, {h.vocab, h.width}, even_values(h.vocab * h.width, 3, small));
  const Place targets(ctx, DType::i32, {h.tokens}, chosen);
  const Place losses(ctx, sums, {h.tokens}), predictions(ctx, DType::i32, {h.tokens});
  const Place loss_sum(ctx, DType::f64, {1}, {0.5});
  const Place dhidden(ctx, dtype, {h.tokens, h.width});
  const Place dweight(ctx, sums, {h.vocab, h.width}, even_values(h.vocab * h.width, 4));
  const Place workspace(
      ctx, DType::u8,
      {loss_head_workspace({.tokens = h.tokens, .width = h.width, .vocab = h.vocab, .dtype = dtype},
                           ctx.device.info())});
  LossHead args;
  args.hidden = hidden;
  args.weight = weight;
  args.targets = targets;
  args.losses = losses;
  args.loss_sum = loss_sum;
  if (h.gradients) {
    args.dhidden = dhidden;
    args.dweight = dweight;
  } else {
    args.predictions = predictions;
  }
  args.workspace = workspace.span();
  ops::loss_head(ctx, args);
  workspace.values();  // the guards
  if (h.gradients) return {losses.values(), loss_sum.values(), dhidden.values(), dweight.values()};
  return {losses.values(), loss_sum.values(), predictions.values()};
}

}  // namespace

TEST_CASE("loss head: gradients and predictions, odd and even vocabularies") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const HeadCase& h :
       {HeadCase{1, 8, 1, true}, HeadCase{40, 64, 65, true}, HeadCase{40, 64, 65, false},
        HeadCase{300, 96, 1000, true}, HeadCase{70, 64, 513, true}, HeadCase{70, 64, 1025, false},
        HeadCase{77, 33, 50257, false}, HeadCase{60, 64, 50304, true},
        HeadCase{9, 40, 131072, true}})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      INFO(h.tokens << " tokens, vocabulary " << h.vocab << ", " << name_of(dtype));
      Cpu cpu;
      const auto exact = run_head(h, cpu.context(), DType::f64);
      const auto got = run_head(h, gpu.context(), dtype);
      REQUIRE(got == run_head(h, gpu.context(), dtype));
      // With gradients, logits are rounded to the dtype: an error of eps |z| in the loss.
      const double eps = unit_roundoff(h.gradients ? dtype : DType::f32);
      for (std::size_t t = 0; t < exact[0].size(); ++t)
        CHECK(std::abs(got[0][t] - exact[0][t]) <= 64 * eps + 1e-5);
      CHECK(std::abs(got[1][0] - exact[1][0]) <= (64 * eps + 1e-5) * static_cast<double>(h.tokens));
      if (!h.gradients) {
        std::size_t other = 0;
        for (std::size_t t = 0; t < exact[2].size(); ++t) other += got[2][t] != exact[2][t] ? 1 : 0;
        CHECK(other == 0);
        continue;
      }
      for (const std::size_t i : {2, 3}) {
        double size = 0, square = 0, error = 0;
        for (std::size_t e = 0; e < exact[i].size(); ++e) {
          size = std::max(size, std::abs(exact[i][e]));
          square += exact[i][e] * exact[i][e];
          error += (got[i][e] - exact[i][e]) * (got[i][e] - exact[i][e]);
        }
        // Sums over up to 131072 products.
        CHECK(std::sqrt(error) <= 16 * unit_roundoff(dtype) * std::sqrt(square) + 1e-9);
        CHECK(largest_error(got[i], exact[i]) <= 64 * unit_roundoff(dtype) * size);
      }
    }
}

TEST_CASE("sanitized: products and losses that no small model has, for compute-sanitizer") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const LinearCase& l : {LinearCase{33, 65, 129, 3, true, true, false},
                                LinearCase{20, 24, 40, 0, true, false, true},
                                LinearCase{1, 264, 33, 0, true, true, false}})
      CHECK(!std::isnan(run_linear(l, gpu.context(), dtype)[0][0]));
    for (const HeadCase& h : {HeadCase{5, 16, 5003, true}, HeadCase{5, 16, 45000, true}})
      CHECK(std::isfinite(run_head(h, gpu.context(), dtype)[1][0]));
  }
}

TEST_CASE("a target outside the vocabulary makes its loss NaN") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  const Context ctx = gpu.context();
  const Place hidden(ctx, DType::bf16, {2, 8}, even_values(16, 1));
  const Place weight(ctx, DType::bf16, {5, 8}, even_values(40, 2));
  const Place targets(ctx, DType::i32, {2}, {4, 5}), losses(ctx, DType::f32, {2});
  const Place workspace(
      ctx, DType::u8,
      {loss_head_workspace({.tokens = 2, .width = 8, .vocab = 5, .dtype = DType::bf16},
                           ctx.device.info())});
  LossHead args;
  args.hidden = hidden, args.weight = weight, args.targets = targets, args.losses = losses;
  args.workspace = workspace.span();
  ops::loss_head(ctx, args);
  const Values got = losses.values();
  CHECK(std::isfinite(got[0]));
  CHECK(std::isnan(got[1]));
}

TEST_CASE("float64 is refused before a launch, naming the op") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  const LinearCase l{4, 4, 4, 0, false, false, false};
  CHECK_THROWS_WITH(run_linear(l, gpu.context(), DType::f64),
                    "linear_forward: dtype f64 has no CUDA kernel; allowed: f32, bf16, f16 (device "
                    "cpu takes f64)");
}
