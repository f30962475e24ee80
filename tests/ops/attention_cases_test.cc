// Faults that other attention libraries met, as reported; each name says where.
#include <array>
#include <cmath>
#include <limits>

#include "ops/ops.h"
#include "tests/catch.h"
#include "tests/cpu/attention/harness.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

const double kInfinity = std::numeric_limits<double>::infinity();

constexpr std::array kStrategies = {AttentionStrategy::automatic, AttentionStrategy::naive,
                                    AttentionStrategy::tiled, AttentionStrategy::split,
                                    AttentionStrategy::decode};

Problem square(std::int64_t n, std::int64_t heads = 1, std::int64_t d = 8) {
  Problem p;
  p.seq_q = p.seq_k = n;
  p.heads = p.kv_heads = heads;
  p.d = d;
  return p;
}

// body(problem) with each strategy that is offered.
template <class Body>
void with_each_strategy(Cpu& cpu, Problem p, Body&& body) {
  for (AttentionStrategy strategy : kStrategies) {
    p.options.strategy = strategy;
    if (!offered(cpu.context(), p, false)) continue;
    INFO(p.text());
    body(p);
  }
}

void check_rule10(Cpu& cpu, const Problem& problem, const Inputs& in) {
  const Expected expected = expect_outputs(problem, in);
  with_each_strategy(cpu, problem, [&](const Problem& p) {
    const std::string wrong = disagreement(p, run(cpu.context(), p, in), expected);
    if (!wrong.empty()) FAIL_CHECK(wrong);
  });
}

// Row-major rows [begin, end) of dimension seq of [batch 1, seq, heads, d].
std::vector<double> rows(const std::vector<double>& x, std::int64_t row, std::int64_t begin,
                         std::int64_t end) {
  return {x.begin() + begin * row, x.begin() + end * row};
}

void check_zero(const std::vector<double>& x, std::size_t begin, std::size_t end) {
  bool zero = true;
  for (std::size_t i = begin; i < end; ++i) zero = zero && x[i] == 0;
  CHECK(zero);
}

void check_finite(const std::vector<double>& x) {
  bool finite = true;
  for (double value : x) finite = finite && std::isfinite(value);
  CHECK(finite);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = a[i] == b[i] ? 0 : std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN stays
  }
  return largest;
}

}  // namespace

TEST_CASE("pytorch#103963: rows without keys harm no other row") {
  Cpu cpu(2);
  Problem p = square(5, 1, 8);
  p.seq_k = 2;
  p.options.causal = true;  // rows 0..2 see nothing
  const Inputs in = normal_inputs(p, 1);
  Problem alone = p;
  alone.seq_q = 2;
  Inputs live = in;
  live.q = rows(in.q, 8, 3, 5), live.d_o = rows(in.d_o, 8, 3, 5);
  const Expected expected = expect_outputs(alone, live);
  with_each_strategy(cpu, p, [&](const Problem& x) {
    const Outputs out = run(cpu.context(), x, in);
    check_zero(out.o, 0, 24);
    check_zero(out.dq, 0, 24);
    for (std::size_t i = 0; i < 3; ++i) CHECK((out.m[i] == -kInfinity && out.l[i] == 0));
    Outputs rest = out;
    rest.o = rows(out.o, 8, 3, 5), rest.dq = rows(out.dq, 8, 3, 5);
    rest.m = rows(out.m, 1, 3, 5), rest.l = rows(out.l, 1, 3, 5);
    CHECK(disagreement(alone, rest, expected) == "");
  });

  // Only the top-left 4x4 of 8x8 visible: one document of 4, rows after it in none.
  Problem corner = square(8);
  corner.cu_q = corner.cu_k = {0, 4};
  const Inputs all = normal_inputs(corner, 2);
  Inputs first = all;
  for (auto* x : {&first.q, &first.k, &first.v, &first.d_o}) *x = rows(*x, 8, 0, 4);
  const Expected four = expect_outputs(square(4), first);
  with_each_strategy(cpu, corner, [&](const Problem& x) {
    Outputs out = run(cpu.context(), x, all);
    for (auto* part : {&out.o, &out.dq, &out.dk, &out.dv}) {
      check_zero(*part, 32, 64);
      *part = rows(*part, 8, 0, 4);
    }
    for (std::size_t i = 4; i < 8; ++i) CHECK(out.m[i] + std::log(out.l[i]) == -kInfinity);
    out.m = rows(out.m, 1, 0, 4), out.l = rows(out.l, 1, 0, 4);
    CHECK(disagreement(square(4), out, four) == "");
  });
}

TEST_CASE("pytorch#127055: a band over a long sequence of ones") {
  Cpu cpu(2);
  Problem p = square(600, 1, 2);
  p.options.window_left = 9;
  p.options.window_right = 0;
  Inputs in = normal_inputs(p, 1);
  for (auto* x : {&in.q, &in.k, &in.v}) std::fill(x->begin(), x->end(), 1.0);
  with_each_strategy(cpu, p, [&](const Problem& x) {
    for (double o : run(cpu.context(), x, in).o) CHECK(std::abs(o - 1) < 1e-6);
  });
  check_rule10(cpu, p, in);
}

TEST_CASE("flash-attention#1778, TransformerEngine#1197, pytorch#181645: who sees how many keys") {
  Cpu cpu(2);
  const auto check_counts = [&](Problem p, const std::vector<double>& counts) {
    Inputs in = normal_inputs(p, 1);
    std::fill(in.q.begin(), in.q.end(), 0.0);  // all scores 0: l counts the keys
    with_each_strategy(cpu, p, [&](const Problem& x) {
      const Outputs out = run(cpu.context(), x, in);
      CHECK(out.l == counts);
      for (std::size_t i = 0; i < counts.size(); ++i)
        CHECK(out.m[i] == (counts[i] > 0 ? 0 : -kInfinity));
      for (std::size_t i = 0; i < counts.size(); ++i)
        if (counts[i] > 0) CHECK(out.lse()[i] == Approx(std::log(counts[i])).epsilon(1e-7));
    });
  };
  Problem p = square(2);
  p.options.causal = true;
  p.seq_k = 5;
  check_counts(p, {4, 5});
  p.seq_q = 5, p.seq_k = 2;
  check_counts(p, {0, 0, 0, 1, 2});
  for (std::int64_t s : {1, 2, 63, 64, 65, 1000}) {
    p.seq_q = 1, p.seq_k = s;
    check_counts(p, {static_cast<double>(s)});
  }
  check_counts(square(8), std::vector<double>(8, 8.0));  // lse = ln 8 = 2.07944
  Problem window = square(8);
  window.options.window_left = 2;
  window.options.window_right = 0;
  check_counts(window, {1, 2, 3, 3, 3, 3, 3, 3});
  Problem wide = square(300);
  wide.options.window_left = 100;
  wide.options.window_right = 30;
  std::vector<double> counts;
  for (int i = 0; i < 300; ++i) counts.push_back(std::min(i, 100) + 1 + std::min(299 - i, 30));
  check_counts(wide, counts);
}

TEST_CASE("TransformerEngine#1197: a left window of the whole sequence is causal") {
  Cpu cpu(2);
  Problem p = square(130);
  p.options.window_right = 0;
  const Inputs in = normal_inputs(p, 1);
  Problem causal = p;
  causal.options = {};
  causal.options.causal = true;
  const Expected expected = expect_outputs(causal, in);
  for (std::int64_t left : {129, 130, 4000}) {
    p.options.window_left = left;
    with_each_strategy(cpu, p, [&](const Problem& x) {
      CHECK(disagreement(x, run(cpu.context(), x, in), expected) == "");
    });
  }
}

TEST_CASE("pytorch#121558: finite but huge scores") {
  Cpu cpu(2);
  for (DType dtype : {DType::f32, DType::bf16}) {
    Problem p = square(1, 1, 64);
    p.dtype = dtype;
    Inputs in = normal_inputs(p, 1);
    for (auto* x : {&in.q, &in.k, &in.v}) std::fill(x->begin(), x->end(), 133120.0);
    with_each_strategy(cpu, p, [&](const Problem& x) {
      const Outputs out = run(cpu.context(), x, in);
      for (double o : out.o) CHECK(o == 133120);
      CHECK(out.lse()[0] == Approx(1.417674752e11).epsilon(1e-6));
      for (const auto* part : {&out.dq, &out.dk, &out.dv}) check_finite(*part);
    });
  }
}

TEST_CASE("flashinfer#4267: all scores very negative") {
  Cpu cpu(2);
  Problem p = square(4, 1, 64);
  p.seq_k = 100;
  Inputs in = normal_inputs(p, 1);
  for (std::size_t i = 0; i < in.q.size(); ++i) in.q[i] = i % 64 == 0;
  for (std::size_t i = 0; i < in.k.size(); ++i) in.k[i] = i % 64 == 0 ? -6e4 * 8 : 0;
  std::vector<double> mean(64, 0.0);
  for (std::size_t i = 0; i < in.v.size(); ++i) mean[i % 64] += in.v[i] / 100;
  with_each_strategy(cpu, p, [&](const Problem& x) {
    const Outputs out = run(cpu.context(), x, in);
    for (std::size_t i = 0; i < out.o.size(); ++i) CHECK(std::abs(out.o[i] - mean[i % 64]) < 1e-6);
    for (double lse : out.lse()) CHECK(std::abs(lse + 59995.39) < 0.01);
  });

  Problem grouped = square(40, 4, 128);
  grouped.kv_heads = 1;
  grouped.dtype = DType::bf16;
  Inputs extreme = normal_inputs(grouped, 2);
  std::fill(extreme.q.begin(), extreme.q.end(), 448.0);
  std::fill(extreme.k.begin(), extreme.k.end(), -1880.0);
  check_rule10(cpu, grouped, extreme);
}

TEST_CASE("lightning-attention#28: every element written at lengths around tiles") {
  Cpu cpu(2);
  for (std::int64_t n : {1, 2, 15, 16, 17, 128, 255, 256, 257, 300, 513, 913, 1213}) {
    Problem p = square(n, n < 200 ? 2 : 1, n < 200 ? 64 : 16);
    p.options.causal = true;
    const Inputs in = normal_inputs(p, static_cast<std::uint64_t>(n));
    check_rule10(cpu, p, in);
  }
  Problem p = square(1, 1, 64);
  const Inputs in = normal_inputs(p, 3);
  double dot = 0, scale = 0;
  for (std::size_t c = 0; c < 64; ++c) {
    dot += in.q[c] * in.k[c] / 8;
    for (double x : {in.q[c], in.k[c], in.v[c], in.d_o[c]}) scale = std::max(scale, std::abs(x));
  }
  with_each_strategy(cpu, p, [&](const Problem& x) {
    const Outputs out = run(cpu.context(), x, in);
    CHECK(out.o == in.v);
    CHECK(out.dv == in.d_o);
    CHECK(out.lse()[0] == Approx(dot).epsilon(1e-5));
    for (const auto* part : {&out.dq, &out.dk})
      for (double g : *part) CHECK(std::abs(g) < 1e-5 * scale * scale * scale);
  });
}

TEST_CASE("triton#621: head widths, and values in the upper half of the width alone") {
  Cpu cpu(2);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (std::int64_t d : {1, 3, 8, 16, 40, 63, 64, 65, 72, 80, 96, 127, 128, 136, 200, 255, 256}) {
      Problem p = square(50, 1, d);
      p.seq_k = 70;
      p.dtype = dtype;
      p.layout = static_cast<Layout>(d % 3);
      check_rule10(cpu, p, normal_inputs(p, static_cast<std::uint64_t>(d)));
    }
  Problem p = square(130, 2, 128);
  p.batch = 3;
  Inputs in = normal_inputs(p, 9);
  for (auto* x : {&in.q, &in.k})
    for (std::size_t i = 0; i < x->size(); ++i)
      if (i % 128 < 64) (*x)[i] = 0;
  check_rule10(cpu, p, in);
}

TEST_CASE("flash-attention#1537: one query a document, one document empty, grouped heads") {
  Cpu cpu(2);
  Problem p = square(2, 9, 64);
  p.seq_k = 8, p.kv_heads = 3;
  p.dtype = DType::bf16;
  p.options.causal = true;
  p.options.scale = 1;
  p.cu_q = {0, 1, 1, 2};
  p.cu_k = {0, 3, 3, 8};
  check_rule10(cpu, p, normal_inputs(p, 1));
  Inputs in = normal_inputs(p, 1);
  std::fill(in.q.begin(), in.q.end(), 0.0);
  const Outputs out = run(cpu.context(), p, in);
  for (std::size_t h = 0; h < 9; ++h) CHECK((out.l[2 * h] == 3 && out.l[2 * h + 1] == 5));
}

TEST_CASE("flash-attention#2562: documents of length zero") {
  Cpu cpu(2);
  Problem p = square(256, 4, 16);
  p.seq_k = 1024, p.kv_heads = 1;
  p.cu_q = {0, 0, 151, 256, 256};
  p.cu_k = {0, 317, 535, 640, 1024};
  for (DType dtype : {DType::f32, DType::bf16}) {
    p.dtype = dtype;
    const Inputs in = normal_inputs(p, 1);
    check_rule10(cpu, p, in);
    with_each_strategy(cpu, p, [&](const Problem& x) {
      const Outputs out = run(cpu.context(), x, in);
      for (const auto* part : {&out.dk, &out.dv}) {
        check_zero(*part, 0, 317 * 16);
        check_zero(*part, 640 * 16, 1024 * 16);
      }
    });
  }

  Problem reported = square(1208 + 840, 4, 64);  // the lengths of the report
  reported.seq_k = 2538 + 1742 + 840 + 3072, reported.kv_heads = 1;
  reported.dtype = DType::bf16;
  reported.cu_q = {0, 0, 1208, 2048, 2048};
  reported.cu_k = {0, 2538, 4280, 5120, 8192};
  const Outputs out = run(cpu.context(), reported, normal_inputs(reported, 2));
  for (const auto* part : {&out.o, &out.m, &out.dq, &out.dk, &out.dv}) check_finite(*part);
  for (const auto* part : {&out.dk, &out.dv}) {
    check_zero(*part, 0, 2538 * 64);
    check_zero(*part, 5120 * 64, 8192 * 64);
  }
}

TEST_CASE("no key at all, no query at all, every document empty") {
  Cpu cpu(2);
  Problem no_keys = square(7, 2, 8);
  no_keys.seq_k = 0;
  Problem no_queries = square(7, 2, 8);
  no_queries.seq_q = 0;
  Problem empty = square(6, 2, 8);
  empty.cu_q = empty.cu_k = {0, 0, 0, 0};
  Problem none = square(6, 2, 8);
  none.cu_q = none.cu_k = {0};
  for (const Problem& problem : {no_keys, no_queries, empty, none}) {
    const Inputs in = normal_inputs(problem, 1);
    with_each_strategy(cpu, problem, [&](const Problem& x) {
      const Outputs out = run(cpu.context(), x, in);
      for (const auto* part : {&out.o, &out.l, &out.dq, &out.dk, &out.dv})
        check_zero(*part, 0, part->size());
      for (double m : out.m) CHECK(m == -kInfinity);
    });
  }
}

TEST_CASE("levanter#449: gradients of a kv head are summed over its query heads") {
  Cpu cpu(2);
  for (auto [heads, kv_heads] : {std::pair<std::int64_t, std::int64_t>{4, 1}, {8, 2}}) {
    Problem p = square(77, heads, 16);
    p.batch = 2, p.kv_heads = kv_heads;
    p.options.causal = true;
    const Inputs in = normal_inputs(p, 1);
    const std::size_t group = static_cast<std::size_t>(heads / kv_heads), d = 16;
    const std::size_t H = static_cast<std::size_t>(heads), G = static_cast<std::size_t>(kv_heads);
    Problem repeated = p;
    repeated.kv_heads = heads;
    Inputs full = in;
    full.k.assign(2 * 77 * H * d, 0), full.v = full.k;
    for (std::size_t row = 0; row < 2 * 77; ++row)
      for (std::size_t h = 0; h < H; ++h)
        for (std::size_t c = 0; c < d; ++c) {
          full.k[(row * H + h) * d + c] = in.k[(row * G + h / group) * d + c];
          full.v[(row * H + h) * d + c] = in.v[(row * G + h / group) * d + c];
        }
    with_each_strategy(cpu, p, [&](Problem x) {
      repeated.options = x.options;
      const Outputs grouped = run(cpu.context(), x, in), each = run(cpu.context(), repeated, full);
      std::vector<double> dk(grouped.dk.size(), 0), dv = dk;
      for (std::size_t row = 0; row < 2 * 77; ++row)
        for (std::size_t h = 0; h < H; ++h)
          for (std::size_t c = 0; c < d; ++c) {
            dk[(row * G + h / group) * d + c] += each.dk[(row * H + h) * d + c];
            dv[(row * G + h / group) * d + c] += each.dv[(row * H + h) * d + c];
          }
      CHECK(largest_difference(grouped.dk, dk) < 1e-4);
      CHECK(largest_difference(grouped.dv, dv) < 1e-4);
    });
  }
}

TEST_CASE("triton#4541: causal on and off; a row that sees keys is not zero") {
  Cpu cpu(2);
  for (DType dtype : {DType::bf16, DType::f16})
    for (bool causal : {false, true}) {
      Problem p = square(256, 2, 64);
      p.dtype = dtype;
      p.options.causal = causal;
      const Inputs in = normal_inputs(p, 1);
      check_rule10(cpu, p, in);
      const Outputs out = run(cpu.context(), p, in);
      for (std::size_t row = 0; row < 256 * 2; ++row) {
        double sum = 0;
        for (std::size_t c = 0; c < 64; ++c) sum += std::abs(out.o[row * 64 + c]);
        CHECK(sum > 0);
      }
    }
}
