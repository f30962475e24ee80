// The square sum of all gradients and AdamW, against a plain update in double.
#include "contract/optimizer.h"

#include "tests/cpu/nn/support.h"

namespace tilefold::test {
namespace {

struct Parameter {
  Array master, weight, grad, m, v;
  bool decay = false;
};

Parameter make(DType dtype, std::int64_t count, unsigned seed, bool decay,
               DType copy = DType::f32) {
  Values square = normal_values(count, seed + 3);
  for (double& x : square) x = x * x;
  Parameter p{Array(dtype, {count}, normal_values(count, seed)),
              {},
              Array(dtype, {count}, normal_values(count, seed + 1, 10)),
              Array(dtype, {count}, normal_values(count, seed + 2)),
              Array(dtype, {count}, square),
              decay};
  if (copy != DType::f32) p.weight = Array(copy, {count});
  return p;
}

std::vector<AdamWParameter> views(std::vector<Parameter>& parameters) {
  std::vector<AdamWParameter> out;
  for (Parameter& p : parameters)
    out.push_back({.master = p.master,
                   .weight = p.weight,
                   .grad = p.grad,
                   .m = p.m,
                   .v = p.v,
                   .decay = p.decay});
  return out;
}

std::vector<std::byte> all_bytes(std::vector<Parameter>& parameters) {
  std::vector<std::byte> out;
  for (Parameter& p : parameters)
    for (Array* a : {&p.master, &p.weight, &p.grad, &p.m, &p.v}) {
      const std::vector<std::byte> more = a->bytes();
      out.insert(out.end(), more.begin(), more.end());
    }
  return out;
}

double square_sum(Context ctx, std::vector<Parameter>& parameters) {
  std::vector<ConstTensor> grads;
  std::int64_t elements = 0;
  for (Parameter& p : parameters) {
    grads.push_back(p.grad);
    elements += grads.back().numel();
  }
  Array sum(DType::f64, {1});
  Array scratch = workspace(grad_square_sum_workspace(
      elements, static_cast<std::int64_t>(grads.size()), ctx.device.info()));
  ops::grad_square_sum(ctx, {.grads = grads, .sum = sum, .workspace = scratch.span()});
  scratch.values();
  return sum.values()[0];
}

constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1;

void run(Context ctx, std::vector<Parameter>& parameters, double square, const StepState& state,
         double clip) {
  const std::vector<AdamWParameter> all = views(parameters);
  Array sum(DType::f64, {1}, {square});
  ops::adamw(ctx, {.parameters = all,
                   .grad_square_sum = sum,
                   .state = &state,
                   .beta1 = kBeta1,
                   .beta2 = kBeta2,
                   .eps = kEps,
                   .weight_decay = kDecay,
                   .clip = clip});
}

const StepState kState{.step = 1,
                       .target_tokens = 8,
                       .learning_rate = 0.01,
                       .bias_correction1 = 1 - kBeta1 * kBeta1,
                       .bias_correction2 = 1 - kBeta2 * kBeta2};

TEST_CASE("grad_square_sum: all tensors, blocks and tails, in float64") {
  Cpu cpu;
  std::vector<Parameter> parameters;
  for (const std::int64_t count : {1, 3, 16384, 16385, 40000})
    parameters.push_back(make(DType::f32, count, static_cast<unsigned>(count), false));
  double expected = 0;
  for (Parameter& p : parameters)
    for (const double g : p.grad.values()) expected += g * g;
  REQUIRE(square_sum(cpu.context(), parameters) == Approx(expected).epsilon(1e-13));
}

TEST_CASE("grad_square_sum: huge float32 gradients do not overflow, and no tensor gives 0") {
  Cpu cpu;
  std::vector<Parameter> none;
  REQUIRE(square_sum(cpu.context(), none) == 0.0);
  std::vector<Parameter> huge(1, make(DType::f32, 2, 1, false));
  huge[0].grad = Array(DType::f32, {2}, {3e38, 3e38});
  REQUIRE(square_sum(cpu.context(), huge) == Approx(1.8e77).epsilon(1e-6));
  huge[0].grad = Array(DType::f32, {2}, {1, std::nan("")});
  REQUIRE(std::isnan(square_sum(cpu.context(), huge)));
}

TEST_CASE("adamw: the formula, with clipping and decay on some, in float32 and float64") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const double clip : {0.0, 1.0, 1e9})
      for (const std::int64_t count : {1, 17, 16385}) {
        INFO(name_of(dtype) << " clip " << clip << " count " << count);
        Cpu cpu;
        std::vector<Parameter> p;
        p.push_back(make(dtype, count, 1, true));
        p.push_back(make(dtype, 5, 9, false));
        const double square = square_sum(cpu.context(), p);
        const double n = kState.target_tokens, norm = std::sqrt(square) / n;
        const double c = clip > 0 ? std::min(1.0, clip / norm) : 1;
        std::vector<Values> master, m, v;
        for (Parameter& one : p) {
          master.push_back(one.master.values());
          m.push_back(one.m.values());
          v.push_back(one.v.values());
        }
        run(cpu.context(), p, square, kState, clip);
        for (std::size_t k = 0; k < p.size(); ++k) {
          const Values grad = p[k].grad.values(), w = p[k].master.values();
          const Values m_now = p[k].m.values(), v_now = p[k].v.values();
          const double u = 8 * unit_roundoff(dtype);  // a few operations a term
          for (std::size_t i = 0; i < grad.size(); ++i) {
            const double g = c * grad[i] / n;
            const double mi = kBeta1 * m[k][i] + (1 - kBeta1) * g;
            const double vi = kBeta2 * v[k][i] + (1 - kBeta2) * g * g;
            const double direction =
                mi / kState.bias_correction1 / (std::sqrt(vi / kState.bias_correction2) + kEps);
            const double expected =
                master[k][i] -
                kState.learning_rate * (direction + (p[k].decay ? kDecay * master[k][i] : 0));
            REQUIRE(std::abs(m_now[i] - mi) <= u * (std::abs(m[k][i]) + std::abs(g)));
            REQUIRE(std::abs(v_now[i] - vi) <= u * vi);
            // m may cancel: its error reaches the direction through the root of v.
            const double slack = u * (std::abs(m[k][i]) + std::abs(g)) / kState.bias_correction1 /
                                 std::sqrt(vi / kState.bias_correction2);
            REQUIRE(std::abs(w[i] - expected) <=
                    u * std::abs(expected) +
                        kState.learning_rate * (slack + 4 * u * std::abs(direction)));
          }
        }
      }
}

TEST_CASE("adamw: the 16-bit copy is the rounded master") {
  for (const DType copy : {DType::bf16, DType::f16}) {
    Cpu cpu;
    std::vector<Parameter> p;
    p.push_back(make(DType::f32, 16400, 1, true, copy));
    run(cpu.context(), p, square_sum(cpu.context(), p), kState, 1.0);
    REQUIRE(p[0].weight.values() == rounded(copy, p[0].master.values()));
  }
}

TEST_CASE("adamw: a norm that is not finite, or no tokens, changes not one bit") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double tokens : {0.0, 8.0})
    for (const double square : {std::nan(""), infinity, 1.0}) {
      if (tokens > 0 && square == 1.0) continue;  // the one that updates
      INFO("tokens " << tokens << " square sum " << square);
      Cpu cpu;
      std::vector<Parameter> p;
      p.push_back(make(DType::f32, 33, 1, true, DType::bf16));
      const std::vector<std::byte> before = all_bytes(p);
      StepState state = kState;
      state.target_tokens = tokens;
      run(cpu.context(), p, square, state, 1.0);
      REQUIRE(all_bytes(p) == before);
    }
}

TEST_CASE("adamw: zero gradients do not divide by zero") {
  Cpu cpu;
  std::vector<Parameter> p;
  p.push_back(make(DType::f32, 4, 1, false));
  const Values before = p[0].master.values();
  for (Array* a : {&p[0].grad, &p[0].m, &p[0].v}) *a = Array(DType::f32, {4}, Values(4, 0.0));
  run(cpu.context(), p, 0.0, kState, 1.0);
  REQUIRE(p[0].master.values() == before);
}

TEST_CASE("optimizer: same bits for every number of threads") {
  check_thread_counts([&](Context ctx) {
    std::vector<Parameter> p;
    p.push_back(make(DType::f32, 50000, 1, true, DType::bf16));
    p.push_back(make(DType::f32, 7, 5, false));
    const double square = square_sum(ctx, p);
    run(ctx, p, square, kState, 1.0);
    std::vector<std::byte> bits = all_bytes(p);
    const auto* at = reinterpret_cast<const std::byte*>(&square);
    bits.insert(bits.end(), at, at + sizeof square);
    return bits;
  });
}

}  // namespace
}  // namespace tilefold::test
