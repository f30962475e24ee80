// Sizes at which others' indices and launch limits gave way.
#include <array>
#include <cmath>
#include <vector>

#include "ops/ops.h"
#include "tests/catch.h"
#include "tests/cpu/attention/harness.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

constexpr std::array kStreaming = {AttentionStrategy::automatic, AttentionStrategy::tiled,
                                   AttentionStrategy::split, AttentionStrategy::decode};

// Results of a problem whose batch elements, heads or documents repeat with a period must repeat.
void check_repeats(const std::vector<double>& x, std::size_t period, double tolerance) {
  std::int64_t wrong = 0;
  for (std::size_t i = period; i < x.size(); ++i)
    wrong += !(std::abs(x[i] - x[i % period]) <= tolerance);
  CHECK(wrong == 0);
}

void repeat(std::vector<double>& x, std::size_t period) {
  for (std::size_t i = period; i < x.size(); ++i) x[i] = x[i - period];
}

// `problem` is `part` over and over along `count` units.
void check_units(const Problem& problem, const Problem& part, std::size_t unit_q,
                 std::size_t unit_k) {
  Cpu cpu(2);
  Inputs in = normal_inputs(problem, 1);
  for (auto [x, unit] :
       {std::pair{&in.q, unit_q}, {&in.k, unit_k}, {&in.v, unit_k}, {&in.d_o, unit_q}})
    repeat(*x, unit);
  const Outputs out = run(cpu.context(), problem, in);
  for (auto [x, unit] :
       {std::pair{&out.o, unit_q}, {&out.dq, unit_q}, {&out.dk, unit_k}, {&out.dv, unit_k}})
    check_repeats(*x, unit, 1e-6);
  Inputs first = in;
  first.q.resize(unit_q), first.d_o.resize(unit_q), first.k.resize(unit_k), first.v.resize(unit_k);
  Outputs head = out;
  head.o.resize(unit_q), head.dq.resize(unit_q), head.dk.resize(unit_k), head.dv.resize(unit_k);
  const std::size_t rows = unit_q / static_cast<std::size_t>(problem.d);
  head.m.resize(rows), head.l.resize(rows);
  CHECK(disagreement(part, head, expect_outputs(part, first)) == "");
}

}  // namespace

TEST_CASE("pytorch#146704: 65535 and 65536 batch elements of 8 heads") {
  for (std::int64_t batch : {65535, 65536}) {
    Problem p;
    p.batch = batch, p.heads = p.kv_heads = 8, p.seq_q = p.seq_k = 4, p.d = 2;
    p.dtype = DType::f16;
    p.options.causal = true;
    Problem part = p;
    part.batch = 1;
    check_units(p, part, 4 * 8 * 2, 4 * 8 * 2);
  }
}

TEST_CASE("flash-attention#1786: 80000 packed documents of 16") {
  Problem p;
  p.seq_q = p.seq_k = 80000 * 16, p.d = 2;
  p.options.causal = true;
  for (std::int64_t x = 0; x <= 80000; ++x) p.cu_q.push_back(16 * x);
  p.cu_k = p.cu_q;
  Problem part = p;
  part.seq_q = part.seq_k = 16;
  part.cu_q = part.cu_k = {0, 16};
  check_units(p, part, 16 * 2, 16 * 2);
}

TEST_CASE("flash-linear-attention#172: 71280 heads") {
  Problem p;
  p.heads = p.kv_heads = 71280, p.seq_q = p.seq_k = 3, p.d = 4;
  Cpu cpu(2);
  Inputs in = normal_inputs(p, 1);
  for (auto* x : {&in.q, &in.k, &in.v, &in.d_o})  // every head as the first
    for (std::size_t i = 0; i < x->size(); ++i)
      (*x)[i] = (*x)[i / (71280 * 4) * (71280 * 4) + i % 4];
  const Outputs out = run(cpu.context(), p, in);
  for (const auto* x : {&out.o, &out.dq, &out.dk, &out.dv}) {
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < x->size(); ++i)
      wrong += !(std::abs((*x)[i] - (*x)[i / (71280 * 4) * (71280 * 4) + i % 4]) <= 1e-6);
    CHECK(wrong == 0);
  }
  Problem one = p;
  one.heads = one.kv_heads = 1;
  const auto head = [](const std::vector<double>& x, std::size_t width) {
    std::vector<double> y;
    for (std::size_t row = 0; row < 3; ++row)
      for (std::size_t c = 0; c < width; ++c) y.push_back(x[row * 71280 * width + c]);
    return y;
  };
  const Inputs first{head(in.q, 4), head(in.k, 4), head(in.v, 4), head(in.d_o, 4)};
  Outputs got{head(out.o, 4), {}, {}, head(out.dq, 4), head(out.dk, 4), head(out.dv, 4)};
  got.m.assign(out.m.begin(), out.m.begin() + 3), got.l.assign(out.l.begin(), out.l.begin() + 3);
  CHECK(disagreement(one, got, expect_outputs(one, first)) == "");
}

TEST_CASE("xformers#719: lengths around 32768 and 65536") {
  Cpu cpu(2);
  constexpr std::int64_t d = 4, tail = 40, window = 100;
  for (std::int64_t n : {32767, 32768, 32769, 65535, 65536, 65537}) {
    Problem p;
    p.seq_q = p.seq_k = n, p.d = d;
    p.options.causal = true;
    p.options.window_left = window;  // keeps n of this size cheap; rows reach over every n
    Problem last = p;                // the last rows alone: their keys start `window` before them
    last.seq_q = tail, last.seq_k = tail + window;
    Inputs in = normal_inputs(p, static_cast<std::uint64_t>(n));
    Inputs end;
    const auto from = [&](const std::vector<double>& x, std::int64_t count) {
      return std::vector<double>(x.end() - count * d, x.end());
    };
    end.q = from(in.q, tail), end.d_o = from(in.d_o, tail);
    end.k = from(in.k, tail + window), end.v = from(in.v, tail + window);
    const Expected expected = expect_outputs(last, end);
    for (AttentionStrategy strategy :
         {AttentionStrategy::automatic, AttentionStrategy::tiled, AttentionStrategy::split}) {
      p.options.strategy = strategy;
      if (!offered(cpu.context(), p, false)) continue;
      const Outputs out = run(cpu.context(), p, in);
      Outputs got{from(out.o, tail), {}, {}, from(out.dq, tail), {}, {}};
      got.m.assign(out.m.end() - tail, out.m.end()), got.l.assign(out.l.end() - tail, out.l.end());
      // Only these rows give the last `tail` keys their gradients.
      Expected compared = expected;
      for (Outputs* x : {&compared.exact, &compared.plain, &compared.size})
        x->dk = from(x->dk, tail), x->dv = from(x->dv, tail);
      got.dk = from(out.dk, tail), got.dv = from(out.dv, tail);
      CHECK(disagreement(p, got, compared) == "");
    }
  }
}

TEST_CASE("xformers#719: zeros in, zeros out, every key counted") {
  Cpu cpu(2);
  for (std::int64_t n : {32767, 32768, 32769, 33728, 65535, 65536, 65537})
    for (AttentionStrategy strategy : kStreaming)
      for (std::int64_t seq_q : {1, 3, 70}) {
        Problem p;
        p.seq_q = seq_q, p.seq_k = n, p.heads = p.kv_heads = 1, p.d = 4;
        p.options.strategy = strategy;
        if (!offered(cpu.context(), p, false)) continue;
        const Inputs zeros{std::vector<double>(static_cast<std::size_t>(seq_q * 4), 0.0),
                           std::vector<double>(static_cast<std::size_t>(n * 4), 0.0),
                           std::vector<double>(static_cast<std::size_t>(n * 4), 0.0),
                           std::vector<double>(static_cast<std::size_t>(seq_q * 4), 0.0)};
        const Outputs out = run(cpu.context(), p, zeros, Passes::forward);
        for (double o : out.o) CHECK(o == 0);
        for (double l : out.l) CHECK(l == static_cast<double>(n));
      }
}

TEST_CASE("few queries over 65537 keys against the reference") {
  Cpu cpu(2);
  for (std::int64_t seq_q : {1, 3}) {
    Problem p;
    p.seq_q = seq_q, p.seq_k = 65537, p.heads = 2, p.kv_heads = 1, p.d = 8;
    p.options.causal = true;
    const Inputs in = normal_inputs(p, 5);
    const Expected expected = expect_outputs(p, in);
    for (AttentionStrategy strategy : kStreaming) {
      p.options.strategy = strategy;
      if (!offered(cpu.context(), p, false)) continue;
      CHECK(disagreement(p, run(cpu.context(), p, in), expected) == "");
    }
  }
}

// Rows 2^20 elements apart: the last ones lie past 2^32 elements. The memory between is never
// touched, so the system never provides it.
TEST_CASE("offsets past 2^32 elements") {
  Cpu cpu(2);
  constexpr std::int64_t n = 4100, apart = std::int64_t{1} << 20, d = 4;
  Problem p;
  p.seq_q = p.seq_k = n, p.d = d;
  p.options.causal = true;
  p.options.window_left = 30;
  const Inputs in = normal_inputs(p, 8);
  const Outputs dense = run(cpu.context(), p, in, Passes::forward);

  std::vector<std::unique_ptr<Memory>> memory;
  const auto sparse = [&](const std::vector<double>* from) {
    memory.push_back(cpu.device->allocate(n * apart * 4));
    float* at = reinterpret_cast<float*>(memory.back()->data());
    for (std::int64_t i = 0; from && i < n * d; ++i)
      at[i / d * apart + i % d] = static_cast<float>((*from)[static_cast<std::size_t>(i)]);
    return Tensor(at, DType::f32, {1, n, 1, d}, {n * apart, apart, d, 1});
  };
  std::vector<float> m(n), l(n);
  AttentionForward args{.q = sparse(&in.q),
                        .k = sparse(&in.k),
                        .v = sparse(&in.v),
                        .o = sparse(nullptr),
                        .m = Tensor(m.data(), DType::f32, {1, 1, n}),
                        .l = Tensor(l.data(), DType::f32, {1, 1, n}),
                        .probabilities = {},
                        .options = p.options,
                        .documents = {},
                        .workspace = {}};
  const std::int64_t bytes = ops::attention_workspace(problem_of(args), cpu.device->info());
  const std::unique_ptr<Memory> workspace = cpu.device->allocate(bytes);
  args.workspace = {workspace->data(), static_cast<std::size_t>(bytes)};
  ops::attention_forward(cpu.context(), args);
  const float* o = args.o.as<float>();
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < n * d; ++i)
    wrong += o[i / d * apart + i % d] != dense.o[static_cast<std::size_t>(i)];
  CHECK(wrong == 0);
}
