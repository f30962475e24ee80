// Residual addition and normalization, forward and backward, with dropout.
#include "contract/norm.h"
#include "tests/cpu/nn/support.h"

namespace tilefold::test {
namespace {

struct Case {
  NormKind kind = NormKind::rms;
  std::int64_t tokens = 1, width = 1;
  bool branch = true, bias = false;
  float p = 0;
  DType model = DType::f64, residual = DType::f64;
};

struct Inputs {
  Values residual, branch, weight, bias;
};
Inputs inputs_of(const Case& c) {
  Inputs in{normal_values(c.tokens * c.width, 1), normal_values(c.tokens * c.width, 2),
            normal_values(c.width, 3), normal_values(c.width, 4)};
  in.residual = rounded(c.residual, in.residual);
  in.branch = rounded(c.model, in.branch);
  in.weight = rounded(c.model, in.weight);
  in.bias = rounded(c.model, in.bias);
  return in;
}

const StepState kState{.seed = 7, .step = 3, .first_sample = 5};
// Rows 0.. belong to samples of `tokens` rows, so that one sample holds all.
Dropout dropout_of(const Case& c) {
  return {.p = c.p, .site = 9, .rows_per_sample = c.tokens, .state = &kState};
}

struct Forward {
  Values sum, y, mean, rstd;
};
Forward run_forward(Context ctx, const Case& c, const Inputs& in,
                    std::vector<std::byte>* bits = nullptr) {
  const Shape rows{c.tokens, c.width};
  const DType sums = sum_dtype(c.model);
  Array residual(c.residual, rows, in.residual), weight(c.model, {c.width}, in.weight);
  Array branch, bias, sum, mean, y(c.model, rows), rstd(sums, {c.tokens});
  if (c.branch) branch = Array(c.model, rows, in.branch), sum = Array(c.residual, rows);
  if (c.bias) bias = Array(c.model, {c.width}, in.bias);
  if (c.kind == NormKind::layer) mean = Array(sums, {c.tokens});
  ops::residual_norm_forward(ctx, {.kind = c.kind,
                                   .residual = residual,
                                   .branch = branch,
                                   .weight = weight,
                                   .bias = bias,
                                   .sum = sum,
                                   .y = y,
                                   .mean = mean,
                                   .rstd = rstd,
                                   .dropout = dropout_of(c)});
  if (bits)
    for (Array* a : {&sum, &y, &mean, &rstd}) {
      const std::vector<std::byte> more = a->bytes();
      bits->insert(bits->end(), more.begin(), more.end());
    }
  return {c.branch ? sum.values() : in.residual, y.values(),
          c.kind == NormKind::layer ? mean.values() : Values{}, rstd.values()};
}

struct Backward {
  Values dsum, dbranch, dweight, dbias;
};
Backward run_backward(Context ctx, const Case& c, const Inputs& in, const Forward& f,
                      const Values& dy, const Values& dsum,
                      std::vector<std::byte>* bits = nullptr) {
  const Shape rows{c.tokens, c.width};
  const DType sums = sum_dtype(c.model);
  Array ady(c.model, rows, dy), sum(c.residual, rows, f.sum), weight(c.model, {c.width}, in.weight);
  Array rstd(sums, {c.tokens}, f.rstd), mean, adsum(c.residual, rows, dsum), dbranch, dbias;
  if (c.kind == NormKind::layer) mean = Array(sums, {c.tokens}, f.mean);
  if (c.branch) dbranch = Array(c.model, rows);
  Array dweight(sums, {c.width}, Values(in.weight.size(), 1.0));
  if (c.bias) dbias = Array(sums, {c.width}, Values(in.weight.size(), 2.0));
  Array scratch =
      workspace(residual_norm_backward_workspace(c.tokens, c.width, c.model, ctx.device.info()));
  ops::residual_norm_backward(ctx, {.kind = c.kind,
                                    .dy = ady,
                                    .sum = sum,
                                    .weight = weight,
                                    .mean = mean,
                                    .rstd = rstd,
                                    .dsum = adsum,
                                    .dbranch = dbranch,
                                    .dweight = dweight,
                                    .dbias = dbias,
                                    .dropout = dropout_of(c),
                                    .workspace = scratch.span()});
  scratch.values();
  if (bits)
    for (Array* a : {&adsum, &dbranch, &dweight, &dbias}) {
      const std::vector<std::byte> more = a->bytes();
      bits->insert(bits->end(), more.begin(), more.end());
    }
  Backward out{adsum.values(), c.branch ? dbranch.values() : Values{}, dweight.values(),
               c.bias ? dbias.values() : Values{}};
  for (double& g : out.dweight) g -= 1;
  for (double& g : out.dbias) g -= 2;
  return out;
}

TEST_CASE("residual norm: gradients agree with central differences") {
  for (const NormKind kind : {NormKind::rms, NormKind::layer})
    for (const bool branch : {false, true})
      for (const float p : {0.0f, 0.4f})
        for (const auto& [tokens, width] :
             {std::pair<std::int64_t, std::int64_t>{1, 3}, {3, 1}, {17, 5}, {40, 6}}) {
          const Case c{.kind = kind,
                       .tokens = tokens,
                       .width = width,
                       .branch = branch,
                       .bias = kind == NormKind::layer,
                       .p = branch ? p : 0};
          INFO((kind == NormKind::rms ? "rms " : "layer ")
               << tokens << " x " << width << (branch ? " branch" : "") << " p " << c.p);
          Cpu cpu;
          const Inputs in = inputs_of(c);
          const Values r = normal_values(tokens * width, 5), q = normal_values(tokens * width, 6);
          const auto loss = [&](const Inputs& at) {
            const Forward f = run_forward(cpu.context(), c, at);
            return dot(r, f.y) + dot(q, f.sum);  // the sum is read later too
          };
          const Forward f = run_forward(cpu.context(), c, in);
          const Backward g = run_backward(cpu.context(), c, in, f, r, q);
          const auto vary = [&](Values Inputs::*member, const Values& gradient) {
            check_gradient(
                [&](const Values& v) {
                  Inputs at = in;
                  at.*member = v;
                  return loss(at);
                },
                in.*member, gradient);
          };
          // A layer norm of one column is constant: its rstd is 316, and the differences of the
          // third order are large; the gradient itself is checked by the other widths.
          if (width > 1) {
            vary(&Inputs::residual, g.dsum);
            if (branch) vary(&Inputs::branch, g.dbranch);
          }
          vary(&Inputs::weight, g.dweight);
          if (c.bias) vary(&Inputs::bias, g.dbias);
        }
}

TEST_CASE("residual norm: every dtype against double on the same rounded inputs") {
  const std::pair<DType, DType> dtypes[] = {{DType::f32, DType::f32},
                                            {DType::bf16, DType::bf16},
                                            {DType::bf16, DType::f32},
                                            {DType::f16, DType::f16},
                                            {DType::f16, DType::f32}};
  for (const auto& [model, residual] : dtypes)
    for (const NormKind kind : {NormKind::rms, NormKind::layer})
      for (const auto& [tokens, width] :
           {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 17}, {130, 67}, {1025, 33}}) {
        Case c{.kind = kind,
               .tokens = tokens,
               .width = width,
               .bias = kind == NormKind::layer,
               .p = 0.25f,
               .model = model,
               .residual = residual};
        if (kind == NormKind::layer && width == 1) continue;  // 0 times 316: nothing to compare
        INFO(name_of(model) << " " << name_of(residual) << " " << tokens << " x " << width);
        Cpu cpu;
        const Inputs in = inputs_of(c);
        const Forward f = run_forward(cpu.context(), c, in);
        // The sum is one float32 addition and one product, rounded; the norm is of that sum.
        Case oracle = c;
        oracle.model = oracle.residual = DType::f64;
        const Forward exact = run_forward(cpu.context(), oracle, in);
        Values bound(exact.sum.size());
        for (std::size_t i = 0; i < bound.size(); ++i)
          bound[i] = storage_error(residual, exact.sum[i]) +
                     4 * unit_roundoff(DType::f32) *
                         (std::abs(in.residual[i]) + 2 * std::abs(in.branch[i]));
        check_within(f.sum, exact.sum, bound);

        oracle.branch = false;
        Inputs stored = in;
        stored.residual = f.sum;
        const Forward normed = run_forward(cpu.context(), oracle, stored);
        // Float32: a row's sums err by width u relative to their terms, which reaches y once
        // through rstd and once through the mean.
        const double u = unit_roundoff(DType::f32) * static_cast<double>(width + 8);
        for (std::size_t i = 0; i < bound.size(); ++i) {
          const std::size_t col = i % static_cast<std::size_t>(width);
          const double bias = c.bias ? std::abs(in.bias[col]) : 0;
          const double row_size = 4;  // of normal numbers, x^ is about 1
          bound[i] =
              storage_error(model, normed.y[i]) + u * (row_size * std::abs(in.weight[col]) + bias);
        }
        check_within(f.y, normed.y, bound);

        const Values dy = rounded(model, normal_values(tokens * width, 7));
        const Values dsum = rounded(residual, normal_values(tokens * width, 8));
        const Backward g = run_backward(cpu.context(), c, in, f, dy, dsum);
        Case full = c;
        full.model = full.residual = DType::f64;
        const Backward e = run_backward(cpu.context(), full, in, f, dy, dsum);
        for (std::size_t i = 0; i < bound.size(); ++i) {
          const std::size_t row = i / static_cast<std::size_t>(width);
          bound[i] = storage_error(residual, e.dsum[i]) + 16 * u * f.rstd[row] + 4e-7;
        }
        check_within(g.dsum, e.dsum, bound);
        for (std::size_t i = 0; i < bound.size(); ++i)
          bound[i] = bound[i] * 1.4 + storage_error(model, e.dbranch[i]);
        check_within(g.dbranch, e.dbranch, bound);
        // Sums over tokens of terms near 1, and of 1 that was there; x^ errs by u.
        const double sum_error = unit_roundoff(DType::f32) *
                                 static_cast<double>(tokens + width + 16) * 4 *
                                 (1 + std::sqrt(static_cast<double>(tokens)));
        check_within(g.dweight, e.dweight, Values(e.dweight.size(), sum_error));
        if (c.bias) check_within(g.dbias, e.dbias, Values(e.dbias.size(), sum_error));
      }
}

TEST_CASE("residual norm: dropout keeps what the contract says, and p = 0 has the bits of none") {
  const Case c{.tokens = 6, .width = 7, .p = 0.5f, .model = DType::f32, .residual = DType::f32};
  Cpu cpu;
  Inputs in = inputs_of(c);
  std::fill(in.residual.begin(), in.residual.end(), 0.0);
  const Forward f = run_forward(cpu.context(), c, in);
  const std::uint64_t key = dropout_key(kState.seed, kState.step);
  int kept = 0;
  for (std::uint64_t e = 0; e < 42; ++e) {
    const Philox::Words words = dropout_words(key, 5, 9, e);
    const bool keep = words[e % 4] >= dropout_threshold(0.5f);
    REQUIRE(f.sum[e] == (keep ? 2 * in.branch[e] : 0.0));
    kept += keep;
  }
  REQUIRE(kept > 8);
  REQUIRE(kept < 34);

  Case none = c;
  none.p = 0;
  std::vector<std::byte> with, without;
  run_forward(cpu.context(), none, in, &with);
  for (std::size_t i = 0; i < in.branch.size(); ++i) in.residual[i] = in.branch[i];
  none.branch = false;
  const Forward plain = run_forward(cpu.context(), none, in);
  none.branch = true;
  std::fill(in.residual.begin(), in.residual.end(), 0.0);
  REQUIRE(run_forward(cpu.context(), none, in, &without).y == plain.y);
  REQUIRE(with == without);
}

TEST_CASE("residual norm: the sum may overwrite the residual") {
  const Case c{.tokens = 19, .width = 21, .model = DType::bf16, .residual = DType::f32};
  Cpu cpu;
  const Inputs in = inputs_of(c);
  const Forward f = run_forward(cpu.context(), c, in);
  Array residual(c.residual, {c.tokens, c.width}, in.residual);
  Array branch(c.model, {c.tokens, c.width}, in.branch), weight(c.model, {c.width}, in.weight);
  Array y(c.model, {c.tokens, c.width}), rstd(DType::f32, {c.tokens});
  ops::residual_norm_forward(cpu.context(), {.residual = residual,
                                             .branch = branch,
                                             .weight = weight,
                                             .bias = {},
                                             .sum = residual,
                                             .y = y,
                                             .mean = {},
                                             .rstd = rstd,
                                             .dropout = {}});
  REQUIRE(residual.values() == f.sum);
  REQUIRE(y.values() == f.y);
}

TEST_CASE("residual norm: same bits for every number of threads") {
  for (const DType model : {DType::f32, DType::bf16, DType::f64})
    for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
      const Case c{.kind = kind,
                   .tokens = 1030,
                   .width = 65,
                   .bias = kind == NormKind::layer,
                   .p = 0.1f,
                   .model = model,
                   .residual = sum_dtype(model)};
      const Inputs in = inputs_of(c);
      const Values dy = normal_values(c.tokens * c.width, 7);
      check_thread_counts([&](Context ctx) {
        std::vector<std::byte> bits;
        const Forward f = run_forward(ctx, c, in, &bits);
        run_backward(ctx, c, in, f, dy, dy, &bits);
        return bits;
      });
    }
}

}  // namespace
}  // namespace tilefold::test
