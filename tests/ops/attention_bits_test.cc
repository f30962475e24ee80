// Same inputs, same bits: on every run and for every number of threads; dropout's mask; strides.
#include <array>
#include <cmath>
#include <vector>

#include "ops/ops.h"
#include "tests/catch.h"
#include "tests/cpu/attention/harness.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

constexpr std::array kStrategies = {AttentionStrategy::automatic, AttentionStrategy::naive,
                                    AttentionStrategy::tiled, AttentionStrategy::split,
                                    AttentionStrategy::decode};

bool same_bits(const Outputs& a, const Outputs& b) {
  return a.o == b.o && a.m == b.m && a.l == b.l && a.dq == b.dq && a.dk == b.dk && a.dv == b.dv;
}

Problem causal(std::int64_t seq_q, std::int64_t seq_k, std::int64_t heads, std::int64_t d) {
  Problem p;
  p.seq_q = seq_q, p.seq_k = seq_k, p.heads = heads, p.kv_heads = (heads + 1) / 2, p.d = d;
  p.options.causal = true;
  return p;
}

}  // namespace

TEST_CASE("the number of threads changes no bit") {
  for (AttentionStrategy strategy : kStrategies)
    for (DType dtype : {DType::f32, DType::bf16})
      for (auto [seq_q, seq_k] :
           {std::pair<std::int64_t, std::int64_t>{1, 700}, {3, 2000}, {200, 331}}) {
        Problem p = causal(seq_q, seq_k, 2, 40);
        p.batch = 2, p.dtype = dtype;
        p.options.strategy = strategy;
        INFO(p.text());
        const Inputs in = normal_inputs(p, 1);
        std::vector<Outputs> results;
        for (int threads : {1, 2, 5}) {
          Cpu cpu(threads);
          if (offered(cpu.context(), p, false)) results.push_back(run(cpu.context(), p, in));
        }
        for (const Outputs& x : results) CHECK(same_bits(x, results[0]));
        CHECK((results.size() == 3 || results.empty()));
      }
}

TEST_CASE("ThunderKittens#33: a hundred runs give the same bits") {
  Cpu cpu(4);
  const Problem p = causal(96, 96, 8, 32);
  const Inputs in = normal_inputs(p, 1);
  const Outputs first = run(cpu.context(), p, in);
  int same = 0;
  for (int i = 0; i < 100; ++i) same += same_bits(run(cpu.context(), p, in), first);
  CHECK(same == 100);
}

TEST_CASE("a batch element's bits do not depend on the others") {
  Cpu cpu(2);
  Problem p = causal(130, 130, 2, 16);
  p.batch = 2;
  Inputs in = normal_inputs(p, 1);
  const Outputs before = run(cpu.context(), p, in);
  for (auto* x : {&in.q, &in.k, &in.v, &in.d_o})
    for (std::size_t i = x->size() / 2; i < x->size(); ++i) (*x)[i] = 7;
  const Outputs after = run(cpu.context(), p, in);
  for (auto part : {&Outputs::o, &Outputs::dq, &Outputs::dk, &Outputs::dv}) {
    const std::vector<double>&a = before.*part, &b = after.*part;
    CHECK(std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(a.size() / 2), b.begin()));
  }
}

TEST_CASE("flash-attention#355: strides change no bit") {
  Cpu cpu(2);
  for (AttentionStrategy strategy : kStrategies)
    for (auto [n, heads, kv_heads, d, dtype] :
         {std::tuple{32, 4, 1, 128, DType::f16}, {213, 4, 4, 64, DType::f32}}) {
      Problem p = causal(n, n, heads, d);
      p.batch = 2, p.kv_heads = kv_heads, p.dtype = dtype;
      p.options.strategy = strategy;
      if (!offered(cpu.context(), p, false)) continue;
      INFO(p.text());
      const Inputs in = normal_inputs(p, 1);
      const Outputs dense = run(cpu.context(), p, in);
      for (Layout layout : {Layout::padded, Layout::heads_outer}) {
        p.layout = layout;
        CHECK(same_bits(run(cpu.context(), p, in), dense));
      }
    }
}

TEST_CASE("flash-attention#2777: the gradient of a sum, with stride 0") {
  Cpu cpu(2);
  Problem p = causal(32, 32, 4, 128);
  p.batch = 2;
  Inputs in = normal_inputs(p, 1);
  for (std::size_t i = 0; i < in.d_o.size(); ++i) in.d_o[i] = in.d_o[i % 128];
  const Outputs expected = run(cpu.context(), p, in);

  const auto floats = [](const std::vector<double>& x) {
    return std::vector<float>(x.begin(), x.end());
  };
  std::vector<float> q = floats(in.q), k = floats(in.k), v = floats(in.v), o = floats(expected.o);
  std::vector<float> m = floats(expected.m), l = floats(expected.l), d_o = floats(in.d_o);
  std::vector<float> dq(q.size()), dk(k.size()), dv(v.size());
  const Shape qs = p.q_shape(), ks = p.k_shape(), rows{2, 4, 32};
  AttentionBackward args{.q = ConstTensor(q.data(), DType::f32, qs),
                         .k = ConstTensor(k.data(), DType::f32, ks),
                         .v = ConstTensor(v.data(), DType::f32, ks),
                         .o = ConstTensor(o.data(), DType::f32, qs),
                         .m = ConstTensor(m.data(), DType::f32, rows),
                         .l = ConstTensor(l.data(), DType::f32, rows),
                         .probabilities = {},
                         .d_o = ConstTensor(d_o.data(), DType::f32, qs, {0, 0, 0, 1}),
                         .dq = Tensor(dq.data(), DType::f32, qs),
                         .dk = Tensor(dk.data(), DType::f32, ks),
                         .dv = Tensor(dv.data(), DType::f32, ks),
                         .options = p.options,
                         .documents = {},
                         .workspace = {}};
  const std::int64_t bytes = ops::attention_workspace(problem_of(args), cpu.device->info());
  const std::unique_ptr<Memory> workspace = cpu.device->allocate(bytes);
  args.workspace = {workspace->data(), static_cast<std::size_t>(bytes)};
  ops::attention_backward(cpu.context(), args);
  CHECK(std::vector<double>(dq.begin(), dq.end()) == expected.dq);
  CHECK(std::vector<double>(dk.begin(), dk.end()) == expected.dk);
  CHECK(std::vector<double>(dv.begin(), dv.end()) == expected.dv);
}

TEST_CASE("flash-attention#2088: dropout's mask repeats with the seed and changes with the step") {
  Cpu cpu(2);
  for (AttentionStrategy strategy : kStrategies) {
    Problem p = causal(1, 300, 2, 16);
    if (strategy != AttentionStrategy::decode) p.seq_q = 90;
    p.options.strategy = strategy;
    const Inputs in = normal_inputs(p, 1);
    const Outputs without = run(cpu.context(), p, in);
    p.state.seed = 5;
    CHECK(same_bits(run(cpu.context(), p, in), without));  // p = 0 has the bits without dropout
    p.dropout = 0.1;
    if (!offered(cpu.context(), p, false)) continue;
    INFO(p.text());
    const Outputs first = run(cpu.context(), p, in);
    CHECK(same_bits(run(cpu.context(), p, in), first));
    CHECK(first.l == without.l);  // l is taken before dropout
    p.state.step = 1;
    CHECK(run(cpu.context(), p, in).o != first.o);
    p.state.step = 0, p.state.seed = 6;
    CHECK(run(cpu.context(), p, in).o != first.o);
    p.state.seed = 5, p.options.dropout.site = 1;
    CHECK(run(cpu.context(), p, in).o != first.o);
  }
}

TEST_CASE("dropout keeps 1 - p of the keys, also past 65536") {
  Cpu cpu(2);
  for (auto [n, seq_q] : {std::pair<std::int64_t, std::int64_t>{4096, 20}, {65600, 2}}) {
    Problem p;
    p.seq_q = seq_q, p.seq_k = n, p.heads = p.kv_heads = 2, p.d = 1;
    p.dropout = 0.3, p.state.seed = 17;
    Inputs in = normal_inputs(p, 1);
    std::fill(in.q.begin(), in.q.end(), 0.0);
    std::fill(in.v.begin(), in.v.end(), 1.0);
    const Outputs out = run(cpu.context(), p, in);
    const double sigma = std::sqrt(0.3 / 0.7 / static_cast<double>(n));  // of a row's o, mean 1
    double mean = 0;
    for (double o : out.o) {
      CHECK(std::abs(o - 1) < 5 * sigma);
      mean += o / static_cast<double>(out.o.size());
    }
    CHECK(std::abs(mean - 1) < 5 * sigma / std::sqrt(static_cast<double>(out.o.size())));
    CHECK(out.o[0] != out.o[1]);  // heads and rows have masks of their own
    CHECK(out.o[0] != out.o[2]);
    CHECK(disagreement(p, out, expect_outputs(p, in)) == "");  // backward has forward's mask
  }
}

TEST_CASE("dropout follows the sample, not its place in the batch") {
  Cpu cpu(2);
  Problem p = causal(40, 40, 2, 8);
  p.batch = 3;
  p.dropout = 0.25;
  p.state.seed = 2;
  const Inputs in = normal_inputs(p, 1);
  const Outputs whole = run(cpu.context(), p, in);
  Problem one = p;  // sample 2 alone, as another micro-batch or rank would run it
  one.batch = 1;
  one.state.first_sample = 2;
  const auto last = [](const std::vector<double>& x) {
    return std::vector<double>(x.end() - static_cast<std::ptrdiff_t>(x.size() / 3), x.end());
  };
  const Outputs alone = run(cpu.context(), one, {last(in.q), last(in.k), last(in.v), last(in.d_o)});
  CHECK(alone.o == last(whole.o));
  CHECK(alone.dk == last(whole.dk));

  Problem packed = p;  // the three samples as documents of one sequence
  packed.batch = 1, packed.seq_q = packed.seq_k = 120;
  packed.cu_q = packed.cu_k = {0, 40, 80, 120};
  packed.options.dropout.rows_per_sample = 40;
  const Outputs documents = run(cpu.context(), packed, in);
  REQUIRE(documents.o.size() == whole.o.size());
  for (std::size_t i = 0; i < whole.o.size(); ++i)
    CHECK(documents.o[i] == Approx(whole.o[i]).epsilon(1e-5).margin(1e-6));
}
