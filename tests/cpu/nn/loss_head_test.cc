// Cross-entropy from hidden states, its gradient, and how losses are summed over tokens.
#include "contract/loss_head.h"

#include "tests/cpu/nn/support.h"

namespace tilefold::test {
namespace {

struct Size {
  std::int64_t tokens, width, vocab;
};

struct Result {
  Values losses, predictions, loss_sum, dhidden, dweight;
};
// loss_sum starts from 0.5 and dweight from 1, which they must keep.
Result run(Context ctx, DType dtype, Size s, const Values& h, const Values& w,
           const Values& targets, bool gradients = true, std::vector<std::byte>* bits = nullptr) {
  const DType sums = sum_dtype(dtype);
  Array ah(dtype, {s.tokens, s.width}, h), aw(dtype, {s.vocab, s.width}, w);
  Array at(DType::i32, {s.tokens}, targets), losses(sums, {s.tokens});
  Array predictions(DType::i32, {s.tokens}), loss_sum(DType::f64, {1}, {0.5});
  Array dhidden, dweight;
  if (gradients) {
    dhidden = Array(dtype, {s.tokens, s.width});
    dweight = Array(sums, {s.vocab, s.width}, Values(w.size(), 1.0));
  }
  Array scratch =
      workspace(loss_head_workspace({s.tokens, s.width, s.vocab, dtype}, ctx.device.info()));
  ops::loss_head(ctx, {.hidden = ah,
                       .weight = aw,
                       .targets = at,
                       .losses = losses,
                       .predictions = predictions,
                       .loss_sum = loss_sum,
                       .dhidden = dhidden,
                       .dweight = dweight,
                       .workspace = scratch.span()});
  scratch.values();
  if (bits)
    for (Array* a : {&losses, &predictions, &loss_sum, &dhidden, &dweight}) {
      const std::vector<std::byte> more = a->bytes();
      bits->insert(bits->end(), more.begin(), more.end());
    }
  Result out{losses.values(), predictions.values(), loss_sum.values(), {}, {}};
  out.loss_sum[0] -= 0.5;
  if (gradients) {
    out.dhidden = dhidden.values();
    out.dweight = dweight.values();
    for (double& g : out.dweight) g -= 1;
  }
  return out;
}

// Every fourth token without a target.
Values targets_of(Size s) {
  Values out(static_cast<std::size_t>(s.tokens));
  for (std::size_t t = 0; t < out.size(); ++t)
    out[t] = t % 4 == 3 ? -1.0 : static_cast<double>((t * 7) % static_cast<std::size_t>(s.vocab));
  return out;
}

TEST_CASE("loss head: gradients of the sum of losses agree with central differences") {
  for (const Size s : {Size{1, 1, 2}, Size{5, 3, 7}, Size{17, 6, 1}, Size{70, 4, 9}}) {
    INFO(s.tokens << " x " << s.width << " -> " << s.vocab);
    Cpu cpu;
    const Values h = normal_values(s.tokens * s.width, 1), w = normal_values(s.vocab * s.width, 2);
    const Values targets = targets_of(s);
    const Result g = run(cpu.context(), DType::f64, s, h, w, targets);
    check_gradient(
        [&](const Values& v) {
          return run(cpu.context(), DType::f64, s, v, w, targets, false).loss_sum[0];
        },
        h, g.dhidden);
    check_gradient(
        [&](const Values& v) {
          return run(cpu.context(), DType::f64, s, h, v, targets, false).loss_sum[0];
        },
        w, g.dweight);
  }
}

TEST_CASE("loss head: losses and predictions by their definition, in every dtype") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const Size s : {Size{1, 1, 1}, Size{3, 17, 5}, Size{130, 33, 67}, Size{513, 5, 2100}}) {
      INFO(name_of(dtype) << " " << s.tokens << " x " << s.width << " -> " << s.vocab);
      Cpu cpu;
      const Values h = rounded(dtype, normal_values(s.tokens * s.width, 1));
      const Values w = rounded(dtype, normal_values(s.vocab * s.width, 2));
      const Values targets = targets_of(s);
      const Result got = run(cpu.context(), dtype, s, h, w, targets);
      const Result exact = run(cpu.context(), DType::f64, s, h, w, targets);
      const auto width = static_cast<std::size_t>(s.width),
                 vocab = static_cast<std::size_t>(s.vocab);
      const double u = unit_roundoff(sum_dtype(dtype));
      double total = 0;
      for (std::size_t t = 0; t < targets.size(); ++t) {
        // Logits err by width u times the size of their sums; loss and softmax follow.
        double sum = 0, top = -INFINITY, size = 0;
        Values z(vocab);
        for (std::size_t v = 0; v < vocab; ++v) {
          double terms = 0;
          for (std::size_t c = 0; c < width; ++c) {
            z[v] += h[t * width + c] * w[v * width + c];
            terms += std::abs(h[t * width + c] * w[v * width + c]);
          }
          size = std::max(size, terms);
          top = std::max(top, z[v]);
        }
        for (std::size_t v = 0; v < vocab; ++v) sum += std::exp(z[v] - top);
        const double logit_error = u * static_cast<double>(s.width + 2) * size;
        const double loss =
            targets[t] < 0 ? 0 : std::log(sum) + top - z[static_cast<std::size_t>(targets[t])];
        REQUIRE(std::abs(got.losses[t] - loss) <=
                2 * logit_error + u * static_cast<double>(s.vocab + 8) + 4 * u * loss);
        REQUIRE(z[static_cast<std::size_t>(got.predictions[t])] >= top - 2 * logit_error);
        total += got.losses[t];
        // dz errs relatively by twice a logit's error and the sum's; dh sums dz times W.
        for (std::size_t c = 0; c < width; ++c) {
          double spread = 0;
          for (std::size_t v = 0; v < vocab; ++v)
            spread +=
                (std::exp(z[v] - top) / sum + (static_cast<double>(v) == targets[t] ? 1.0 : 0.0)) *
                std::abs(w[v * width + c]);
          const double error = 4 * logit_error + u * 3 * static_cast<double>(s.vocab + 8);
          const double dh = exact.dhidden[t * width + c];
          REQUIRE(std::abs(got.dhidden[t * width + c] - dh) <=
                  error * spread + storage_error(dtype, dh));
        }
      }
      REQUIRE(std::abs(got.loss_sum[0] - total) <= 1e-9 * total + 1e-12);
      const double error = 40 * u * static_cast<double>(s.tokens + s.width + s.vocab);
      check_within(got.dweight, exact.dweight, Values(exact.dweight.size(), error));
    }
}

TEST_CASE("loss head: a token without a target has no loss and no gradient, but a prediction") {
  const Size s{3, 2, 4};
  Cpu cpu;
  const Values w = normal_values(8, 1);
  const Result r = run(cpu.context(), DType::f32, s, normal_values(6, 2), w, {-1, -1, -1});
  REQUIRE(r.losses == Values(3, 0.0));
  REQUIRE(r.loss_sum[0] == 0.0);
  REQUIRE(r.dhidden == Values(6, 0.0));
  REQUIRE(r.dweight == Values(8, 0.0));
  for (const double p : r.predictions) REQUIRE((p >= 0 && p < 4));
}

TEST_CASE("loss head: of equal logits the first is predicted") {
  Cpu cpu;
  // Logits 0, 2, 2, 1 and then all equal.
  const Result r = run(cpu.context(), DType::f32, {2, 1, 4}, {1, 0}, {0, 2, 2, 1}, {0, 0}, false);
  REQUIRE(r.predictions == Values{1, 0});
  REQUIRE(r.losses[1] == Approx(std::log(4.0)).epsilon(1e-6));
}

TEST_CASE("loss head: huge logits give finite losses and gradients") {
  Cpu cpu;
  const Result r = run(cpu.context(), DType::f32, {2, 1, 3}, {1e30, 1e30}, {1, -1, 0.5}, {0, 1});
  REQUIRE(r.losses[0] == 0.0);
  REQUIRE(r.losses[1] == Approx(2e30));
  REQUIRE(r.dhidden[0] == 0.0);
  REQUIRE(r.dhidden[1] == Approx(2.0));
}

TEST_CASE("loss head: hidden states that are not finite show in loss and gradient") {
  Cpu cpu;
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const Result r = run(cpu.context(), DType::f32, {2, 1, 3}, {bad, 1}, {0.5, -1, 2}, {1, 1});
    REQUIRE(!std::isfinite(r.loss_sum[0]));
    REQUIRE(!std::isfinite(r.losses[0]));
    REQUIRE(std::isfinite(r.losses[1]));
    bool finite = true;
    for (const double g : r.dweight) finite = finite && std::isfinite(g);
    REQUIRE(!finite);
  }
}

// A batch with 4 targets of loss 2 and one with 1 target of loss 7: the mean over tokens is 3, not
// the 4.5 of a mean of means, and gradients weigh alike (their sums, divided once by 5).
TEST_CASE("loss head: sums over micro-batches give the mean over tokens") {
  // One column, logits (z, 0): loss of target 1 is ln(1 + e^z), so z = ln(e^loss - 1).
  Cpu cpu;
  const auto logit = [](double loss) { return std::log(std::exp(loss) - 1); };
  const double a = logit(2.0), b = logit(7.0);
  const Values w{1, 0};
  const Result first = run(cpu.context(), DType::f64, {4, 1, 2}, {a, a, a, a}, w, {1, 1, 1, 1});
  const Result second = run(cpu.context(), DType::f64, {1, 1, 2}, {b}, w, {1});
  const Result both =
      run(cpu.context(), DType::f64, {5, 1, 2}, {a, a, a, a, b}, w, {1, 1, 1, 1, 1});
  REQUIRE((first.loss_sum[0] + second.loss_sum[0]) / 5 == Approx(3.0).epsilon(1e-12));
  REQUIRE(both.loss_sum[0] / 5 == Approx(3.0).epsilon(1e-12));
  for (std::size_t i = 0; i < 2; ++i)
    REQUIRE(first.dweight[i] + second.dweight[i] == Approx(both.dweight[i]).epsilon(1e-12));
}

TEST_CASE("loss head: same bits for every number of threads") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Size s{1100, 33, 301};  // two stages of tokens would need a larger vocabulary:
    const Size staged{600, 9, 2100};
    for (const Size size : {s, staged}) {
      const Values h = normal_values(size.tokens * size.width, 1);
      const Values w = normal_values(size.vocab * size.width, 2), targets = targets_of(size);
      check_thread_counts([&](Context ctx) {
        std::vector<std::byte> bits;
        run(ctx, dtype, size, h, w, targets, true, &bits);
        return bits;
      });
    }
  }
}

TEST_CASE("loss head: a target outside the vocabulary is refused by its place") {
  Cpu cpu;
  for (const double bad : {-2.0, 4.0})
    REQUIRE_THROWS_WITH(run(cpu.context(), DType::f32, {2, 1, 4}, {1, 1}, {0, 1, 2, 3}, {3, bad}),
                        str("loss_head: targets[1] is ", bad, "; allowed: -1 to 3"));
}

}  // namespace
}  // namespace tilefold::test
