// Token and position embedding, with dropout; backward is deterministic.
#include "contract/embedding.h"

#include "tests/cpu/nn/support.h"

namespace tilefold::test {
namespace {

struct Case {
  std::int64_t samples, seq, width, vocab;
  bool positions = true;
  float p = 0;
  DType model = DType::f64, residual = DType::f64;
  std::int64_t tokens() const { return samples * seq; }
};

const StepState kState{.seed = 11, .step = 2, .first_sample = 40};
Dropout dropout_of(const Case& c) {
  return {.p = c.p, .site = 1, .rows_per_sample = c.seq, .state = &kState};
}

// Token 0 often, the last of the vocabulary once, and most never.
Array tokens_of(const Case& c) {
  Values ids(static_cast<std::size_t>(c.tokens()));
  for (std::size_t t = 0; t < ids.size(); ++t)
    ids[t] = static_cast<double>(t % 3 == 0 ? 0 : (t * t) % static_cast<std::size_t>(c.vocab));
  ids.back() = static_cast<double>(c.vocab - 1);
  return Array(DType::i32, {c.tokens()}, ids);
}
Array positions_of(const Case& c) {
  Values ids(static_cast<std::size_t>(c.tokens()));
  for (std::size_t t = 0; t < ids.size(); ++t)
    ids[t] = static_cast<double>(t % static_cast<std::size_t>(c.seq));
  return Array(DType::i32, {c.tokens()}, ids);
}

Array run_forward(Context ctx, const Case& c, const Values& table, const Values& places) {
  Array tokens = tokens_of(c), positions = positions_of(c);
  Array at(c.model, {c.vocab, c.width}, table), ap, x(c.residual, {c.tokens(), c.width});
  if (c.positions) ap = Array(c.model, {c.seq, c.width}, places);
  ops::embedding_forward(ctx, {.tokens = tokens,
                               .positions = c.positions ? ConstTensor(positions) : ConstTensor(),
                               .table = at,
                               .position_table = ap,
                               .x = x,
                               .dropout = dropout_of(c)});
  return x;
}

struct Gradients {
  Array table, places;
};
Gradients run_backward(Context ctx, const Case& c, const Values& dx) {
  Array tokens = tokens_of(c), positions = positions_of(c),
        adx(c.residual, {c.tokens(), c.width}, dx);
  const DType sums = sum_dtype(c.residual);
  Gradients g{
      Array(sums, {c.vocab, c.width}, Values(static_cast<std::size_t>(c.vocab * c.width), 1)),
      Array(sums, {c.seq, c.width}, Values(static_cast<std::size_t>(c.seq * c.width), 2))};
  ops::embedding_backward(ctx, {.tokens = tokens,
                                .positions = positions,
                                .dx = adx,
                                .dtable = g.table,
                                .dposition_table = c.positions ? Tensor(g.places) : Tensor(),
                                .dropout = dropout_of(c)});
  return g;
}

Values less(Values values, double by) {
  for (double& v : values) v -= by;
  return values;
}

TEST_CASE("embedding: gradients agree with central differences") {
  for (const float p : {0.0f, 0.3f}) {
    const Case c{.samples = 2, .seq = 5, .width = 19, .vocab = 7, .p = p};
    Cpu cpu;
    const Values table = normal_values(c.vocab * c.width, 1),
                 places = normal_values(c.seq * c.width, 2);
    const Values r = normal_values(c.tokens() * c.width, 3);
    Gradients g = run_backward(cpu.context(), c, r);
    check_gradient(
        [&](const Values& v) { return dot(r, run_forward(cpu.context(), c, v, places).values()); },
        table, less(g.table.values(), 1));
    check_gradient(
        [&](const Values& v) { return dot(r, run_forward(cpu.context(), c, table, v).values()); },
        places, less(g.places.values(), 2));
  }
}

TEST_CASE("embedding: every dtype is the rounded sum of two table rows") {
  const std::pair<DType, DType> dtypes[] = {{DType::f32, DType::f32},  {DType::bf16, DType::bf16},
                                            {DType::bf16, DType::f32}, {DType::f16, DType::f16},
                                            {DType::f16, DType::f32},  {DType::f64, DType::f64}};
  for (const auto& [model, residual] : dtypes)
    for (const std::int64_t width : {1, 3, 17, 300}) {
      INFO(name_of(model) << " " << name_of(residual) << " width " << width);
      Case c{.samples = 1,
             .seq = 17,
             .width = width,
             .vocab = 23,
             .model = model,
             .residual = residual};
      Cpu cpu;
      const Values table = rounded(model, normal_values(c.vocab * width, 1));
      const Values places = rounded(model, normal_values(c.seq * width, 2));
      const Values x = run_forward(cpu.context(), c, table, places).values();
      c.positions = false;
      const Values alone = run_forward(cpu.context(), c, table, places).values();
      const Values ids = tokens_of(c).values();
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t w = static_cast<std::size_t>(width), t = i / w, col = i % w;
        const double token = table[static_cast<std::size_t>(ids[t]) * w + col];
        const double sum = token + places[t * w + col];
        REQUIRE(alone[i] == token);
        REQUIRE(std::abs(x[i] - sum) <=
                storage_error(residual, sum) + 2 * unit_roundoff(sum_dtype(model)) * std::abs(sum));
      }
    }
}

TEST_CASE("embedding: same bits for every number of threads") {
  for (const DType residual : {DType::f32, DType::bf16, DType::f64}) {
    const Case c{.samples = 3,
                 .seq = 400,
                 .width = 70,
                 .vocab = 31,
                 .p = 0.2f,
                 .model = residual,
                 .residual = residual};
    const Values table = normal_values(c.vocab * c.width, 1),
                 places = normal_values(c.seq * c.width, 2);
    const Values dx = normal_values(c.tokens() * c.width, 3);
    check_thread_counts([&](Context ctx) {
      std::vector<std::byte> bits = run_forward(ctx, c, table, places).bytes();
      Gradients g = run_backward(ctx, c, dx);
      for (Array* a : {&g.table, &g.places}) {
        const std::vector<std::byte> more = a->bytes();
        bits.insert(bits.end(), more.begin(), more.end());
      }
      return bits;
    });
  }
}

TEST_CASE("embedding: dropout depends on the sample's place in the global batch, not the call's") {
  // Two samples at once, then the second alone with first_sample one higher.
  const Case both{.samples = 2, .seq = 6, .width = 5, .vocab = 1, .p = 0.5f};
  Cpu cpu;
  const Values table(5, 1.0), places(30, 0.0);
  const Values x = run_forward(cpu.context(), both, table, places).values();
  StepState second = kState;
  second.first_sample += 1;
  Array tokens(DType::i32, {6}, Values(6, 0.0)), at(DType::f64, {1, 5}, table),
      y(DType::f64, {6, 5});
  ops::embedding_forward(
      cpu.context(), {.tokens = tokens,
                      .positions = {},
                      .table = at,
                      .position_table = {},
                      .x = y,
                      .dropout = {.p = 0.5f, .site = 1, .rows_per_sample = 6, .state = &second}});
  REQUIRE(y.values() == Values(x.begin() + 30, x.end()));
  REQUIRE(Values(x.begin(), x.begin() + 30) != Values(x.begin() + 30, x.end()));
}

TEST_CASE("embedding: an id outside its table is refused by its place") {
  Cpu cpu;
  Array at(DType::f32, {4, 2}, Values(8, 0.0)), x(DType::f32, {3, 2});
  for (const double bad : {-1.0, 4.0}) {
    Array tokens(DType::i32, {3}, {0, 3, bad});
    REQUIRE_THROWS_WITH(ops::embedding_forward(cpu.context(), {.tokens = tokens,
                                                               .positions = {},
                                                               .table = at,
                                                               .position_table = {},
                                                               .x = x,
                                                               .dropout = {}}),
                        str("embedding: tokens[2] is ", bad, "; allowed: 0 to 3"));
  }
}

}  // namespace
}  // namespace tilefold::test
