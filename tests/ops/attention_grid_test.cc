// Odd shapes under every option, strategy and dtype against the float64 reference (rule 10).
#include <array>
#include <map>
#include <utility>

#include "ops/ops.h"
#include "tests/catch.h"
#include "tests/cpu/attention/harness.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

constexpr std::array kStrategies = {AttentionStrategy::automatic, AttentionStrategy::naive,
                                    AttentionStrategy::tiled, AttentionStrategy::split,
                                    AttentionStrategy::decode};

constexpr int kOptions = 14;

void set_option(Problem& p, int option) {
  AttentionOptions& o = p.options;
  p.state.seed = 11;
  switch (option) {
    case 0:
      return;
    case 1:
      o.causal = true;
      return;
    case 2:
      o.window_left = 7;
      return;
    case 3:
      o.window_right = 3;
      return;
    case 4:
      o.window_left = 5, o.window_right = 5;
      return;
    case 5:
      o.causal = true, o.window_left = 16;
      return;
    case 6:
      o.softcap = 2;
      return;
    case 7:
      o.causal = true, o.softcap = 0.5f, o.scale = 0.7f;
      return;
    case 8:
      o.scale = 1.5f;
      return;
    case 9:
      p.dropout = 0.2;
      return;
    case 10:
      o.causal = true, p.dropout = 0.5, o.dropout.site = 9;
      return;
    case 11:
      o.causal = true, o.deterministic = false;
      return;
    default:
      break;
  }
  // Documents without queries, without keys, and rows after the last offset.
  p.batch = 1;
  const std::int64_t q = p.seq_q, k = p.seq_k;
  p.cu_q = {0, q / 3, q / 3, q * 2 / 3, q - (q > 4)};
  p.cu_k = {0, 0, k / 4, k / 2, k - (k > 4)};
  p.cu_dtype = option == 12 ? DType::i32 : DType::i64;
  if (option == 13) o.causal = true, o.window_left = 20, o.softcap = 3;
}

// Runs every strategy that is offered; returns how many problems each ran.
using Counts = std::map<AttentionStrategy, int>;

void check_strategies(Cpu& cpu, Problem p, const Inputs& in, Counts& ran) {
  const Expected expected = expect_outputs(p, in);
  for (AttentionStrategy strategy : kStrategies) {
    p.options.strategy = strategy;
    if (!offered(cpu.context(), p, false)) {
      CHECK_THROWS_AS(run(cpu.context(), p, in), UsageError);
      continue;
    }
    const std::string wrong = disagreement(p, run(cpu.context(), p, in), expected);
    if (!wrong.empty()) FAIL_CHECK(wrong);
    ++ran[strategy];
  }
}

}  // namespace

TEST_CASE("odd shapes under every option, strategy and dtype") {
  constexpr std::pair<std::int64_t, std::int64_t> shapes[] = {
      {1, 1},   {2, 5},     {5, 2},   {1, 37},  {37, 1},  {3, 64},
      {64, 3},  {17, 17},   {63, 65}, {65, 63}, {64, 64}, {33, 100},
      {1, 513}, {128, 129}, {239, 1}, {799, 3}, {3, 799}, {113, 203}};
  constexpr std::int64_t widths[] = {8, 16, 1, 40, 64, 33, 24, 5};
  constexpr std::pair<std::int64_t, std::int64_t> heads[] = {
      {1, 1}, {2, 2}, {4, 2}, {3, 1}, {1, 1}};
  Cpu cpu(2);
  Counts ran;
  int n = 0, problems = 0;
  for (auto [seq_q, seq_k] : shapes)
    for (int option = 0; option < kOptions; ++option)
      for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
        if (dtype == DType::f64 && n % 4 != 0) {
          ++n;
          continue;
        }
        Problem p;
        p.seq_q = seq_q, p.seq_k = seq_k, p.dtype = dtype;
        p.d = widths[n % 8];
        std::tie(p.heads, p.kv_heads) = heads[n % 5];
        p.batch = 1 + n % 2;
        p.layout = static_cast<Layout>(n % 3);
        if (seq_q * seq_k > 10000) p.batch = 1;
        set_option(p, option);
        check_strategies(cpu, p, normal_inputs(p, static_cast<std::uint64_t>(n)), ran);
        ++n, ++problems;
      }
  CHECK(ran[AttentionStrategy::automatic] == problems);
  CHECK(ran[AttentionStrategy::naive] == problems);
  CHECK(ran[AttentionStrategy::tiled] >= problems - problems / 8);  // float64 may be naive's alone
  CHECK(ran[AttentionStrategy::split] > problems / 4);
  CHECK(ran[AttentionStrategy::decode] > problems / 50);
}

TEST_CASE("sequences around a thousand") {
  struct {
    std::int64_t seq_q, seq_k;
    int option;
    DType dtype;
  } const rows[] = {{1023, 1024, 1, DType::f32},  {1024, 1023, 1, DType::bf16},
                    {1023, 1024, 10, DType::f16}, {1024, 1023, 13, DType::f32},
                    {1024, 1024, 6, DType::bf16}, {300, 1025, 5, DType::f16}};
  Cpu cpu(2);
  Counts ran;
  for (const auto& row : rows) {
    Problem p;
    p.seq_q = row.seq_q, p.seq_k = row.seq_k, p.dtype = row.dtype;
    p.d = 24;
    set_option(p, row.option);
    check_strategies(cpu, p, normal_inputs(p, 77), ran);
  }
  CHECK(ran[AttentionStrategy::tiled] == 6);
}

TEST_CASE("inputs that normal values hide") {
  constexpr std::int64_t seq_q = 70, seq_k = 133, d = 24;
  Cpu cpu(2);
  Counts ran;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (int kind = 0; kind < 6; ++kind) {
      Problem p;
      p.batch = 2, p.heads = 4, p.kv_heads = 2, p.d = d;
      p.seq_q = seq_q, p.seq_k = seq_k, p.dtype = dtype;
      p.options.causal = kind % 2 == 0;
      p.layout = static_cast<Layout>(kind % 3);
      Inputs in = normal_inputs(p, 3);
      const auto each = [](std::vector<double>& x, auto&& f) {
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = f(static_cast<std::int64_t>(i));
      };
      const auto row = [&](std::int64_t i, std::int64_t heads) { return i / (d * heads); };
      if (kind == 0)  // constant
        for (auto* x : {&in.q, &in.k, &in.v, &in.d_o}) each(*x, [](std::int64_t) { return 0.75; });
      if (kind == 1) {  // one-hot
        each(in.q, [&](std::int64_t i) { return i % d == row(i, 4) % d ? 4.0 : 0.0; });
        each(in.k, [&](std::int64_t i) { return i % d == row(i, 2) % d ? 4.0 : 0.0; });
      }
      if (kind == 2) {  // large scores
        each(in.q, [&](std::int64_t i) { return 40 * in.q[static_cast<std::size_t>(i)]; });
        each(in.k, [&](std::int64_t i) { return 10 * in.k[static_cast<std::size_t>(i)]; });
      }
      if (kind == 3) {  // very negative scores: about -1.2e4, all of them
        each(in.q, [](std::int64_t) { return 50.0; });
        each(in.k, [](std::int64_t i) { return -50.0 - 0.001 * static_cast<double>(i % 97); });
      }
      if (kind == 4) {  // scores that rise with the key: every tile has a new maximum
        each(in.q, [](std::int64_t i) { return i % d == 0 ? 8.0 : 0.0; });
        each(in.k, [&](std::int64_t i) {
          return i % d == 0 ? 0.25 * static_cast<double>(row(i, 2) % seq_k) : 0.0;
        });
      }
      if (kind == 5) {  // falling ones: the first tile's maximum stays
        each(in.q, [](std::int64_t i) { return i % d == 0 ? 8.0 : 0.0; });
        each(in.k, [&](std::int64_t i) {
          return i % d == 0 ? -0.25 * static_cast<double>(row(i, 2) % seq_k) : 0.0;
        });
      }
      round_inputs(in, dtype);
      INFO("kind " << kind);
      check_strategies(cpu, p, in, ran);
    }
  CHECK(ran[AttentionStrategy::tiled] == 18);
}

TEST_CASE("naive with the probabilities kept for backward") {
  Cpu cpu(2);
  for (int option : {0, 1, 5, 7, 9, 10})
    for (DType dtype : {DType::f32, DType::bf16}) {
      Problem p;
      p.batch = 2, p.heads = 4, p.kv_heads = 2, p.d = 24;
      p.seq_q = 40, p.seq_k = 33, p.dtype = dtype;
      set_option(p, option);
      p.options.strategy = AttentionStrategy::naive;
      p.keep_probabilities = true;
      const Inputs in = normal_inputs(p, 6);
      CHECK(disagreement(p, run(cpu.context(), p, in), expect_outputs(p, in)) == "");
    }
}

TEST_CASE("every query head reads its own kv head, batch and row") {
  Cpu cpu(2);
  for (AttentionStrategy strategy : kStrategies)
    for (std::int64_t seq_q : {std::int64_t{1}, std::int64_t{70}}) {
      Problem p;
      p.batch = 3, p.heads = 6, p.kv_heads = 3, p.d = 16;
      p.seq_q = seq_q, p.seq_k = 70;
      p.layout = Layout::padded;
      p.options.strategy = strategy;
      if (!offered(cpu.context(), p, false)) continue;
      Inputs in = normal_inputs(p, 4);
      for (std::size_t i = 0; i < in.v.size(); ++i)  // v = 10 batch + kv head + 1
        in.v[i] = static_cast<double>(10 * (i / (70 * 3 * 16)) + i / 16 % 3 + 1);
      const Outputs out = run(cpu.context(), p, in, Passes::forward);
      for (std::size_t i = 0; i < out.o.size(); ++i) {
        const std::size_t batch = i / (static_cast<std::size_t>(seq_q) * 6 * 16), head = i / 16 % 6;
        CHECK(out.o[i] == Approx(static_cast<double>(10 * batch + head / 2 + 1)).epsilon(1e-5));
      }
    }
}
