// The oracle against values worked out by hand and against central differences of itself.
#include <cmath>
#include <limits>

#include "cpu/reference/attention.h"
#include "tests/catch.h"
#include "tests/cpu/attention/harness.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

const double kInfinity = std::numeric_limits<double>::infinity();

Problem small(std::int64_t seq_q, std::int64_t seq_k) {
  Problem p;
  p.dtype = DType::f64;
  p.seq_q = seq_q, p.seq_k = seq_k;
  p.batch = 2, p.heads = 4, p.kv_heads = 2, p.d = 3;
  return p;
}

// sum of o * d_o, whose gradients backward gives.
double weighted_sum(const Problem& p, const Inputs& in) {
  const Outputs out = expect_outputs(p, in, Passes::forward).exact;
  double sum = 0;
  for (std::size_t i = 0; i < out.o.size(); ++i) sum += out.o[i] * in.d_o[i];
  return sum;
}

void check_gradients(const Problem& p) {
  INFO(p.text());
  Inputs in = normal_inputs(p, 5);
  const Outputs exact = expect_outputs(p, in).exact;
  for (auto [x, gradient] : {std::pair{&in.q, &exact.dq}, {&in.k, &exact.dk}, {&in.v, &exact.dv}})
    for (std::size_t i = 0; i < x->size(); i += 3) {
      const double h = 1e-5, kept = (*x)[i];
      (*x)[i] = kept + h;
      const double above = weighted_sum(p, in);
      (*x)[i] = kept - h;
      const double below = weighted_sum(p, in);
      (*x)[i] = kept;
      CHECK((*gradient)[i] == Approx((above - below) / (2 * h)).epsilon(1e-6).margin(1e-8));
    }
}

}  // namespace

TEST_CASE("one query, two keys, by hand") {
  Problem p;
  p.dtype = DType::f64;
  p.seq_q = 1, p.seq_k = 2, p.d = 1;
  p.options.scale = 0.5f;
  const Inputs in{.q = {2}, .k = {1, 3}, .v = {10, 20}, .d_o = {1}};
  const Outputs x = expect_outputs(p, in).exact;  // scores 1 and 3
  const double p1 = 1 / (1 + std::exp(-2.0)), p0 = 1 - p1;
  CHECK(x.m[0] == 3);
  CHECK(x.l[0] == Approx(1 + std::exp(-2.0)).epsilon(1e-14));
  CHECK(x.o[0] == Approx(10 * p0 + 20 * p1).epsilon(1e-14));
  const double ds1 = p1 * (20 - x.o[0]);  // ds0 = -ds1
  CHECK(x.dq[0] == Approx(0.5 * (3 - 1) * ds1).epsilon(1e-12));
  CHECK(x.dk[1] == Approx(0.5 * 2 * ds1).epsilon(1e-12));
  CHECK(x.dk[0] == Approx(-0.5 * 2 * ds1).epsilon(1e-12));
  CHECK(x.dv[0] == Approx(p0).epsilon(1e-12));
}

TEST_CASE("gradients agree with central differences under every option") {
  Problem p = small(5, 7);
  SECTION("full") {}
  SECTION("causal, more keys") { p.options.causal = true; }
  SECTION("causal, fewer keys: rows without keys") {
    p = small(7, 4);
    p.options.causal = true;
  }
  SECTION("window") {
    p.options.window_left = 2;
    p.options.window_right = 1;
  }
  SECTION("softcap and scale") {
    p.options.softcap = 1.5f;
    p.options.scale = 1.25f;
  }
  SECTION("dropout") {
    p.dropout = 0.4;
    p.state.seed = 3;
  }
  SECTION("packed documents, one without queries, one without keys, rows left over") {
    p = small(9, 8);
    p.batch = 1;
    p.cu_q = {0, 3, 3, 5, 8};
    p.cu_k = {0, 2, 4, 4, 7};
    p.options.causal = true;
  }
  check_gradients(p);
}

TEST_CASE("rows that no document owns, and rows without keys") {
  Problem p = small(9, 8);
  p.batch = 1, p.heads = p.kv_heads = 1;
  p.cu_q = {0, 3, 3, 5, 8};
  p.cu_k = {0, 2, 4, 4, 7};
  const Inputs in = normal_inputs(p, 1);
  const Outputs x = expect_outputs(p, in).exact;
  for (std::size_t row : {3u, 4u, 8u}) {  // rows 3, 4: a document without keys; 8: of no document
    CHECK(x.m[row] == -kInfinity);
    CHECK(x.l[row] == 0);
    for (std::size_t c = 0; c < 3; ++c) {
      CHECK(x.o[row * 3 + c] == 0);
      CHECK(x.dq[row * 3 + c] == 0);
    }
  }
  for (std::size_t row : {2u, 3u, 7u})  // keys 2, 3: a document without queries; 7: of no document
    for (std::size_t c = 0; c < 3; ++c) {
      CHECK(x.dk[row * 3 + c] == 0);
      CHECK(x.dv[row * 3 + c] == 0);
    }
  CHECK(x.m[0] > -kInfinity);
}

TEST_CASE("16-bit: probabilities and results are rounded to the type, states are not") {
  Problem p = small(6, 6);
  p.dtype = DType::bf16;
  const Inputs in = normal_inputs(p, 2);
  const Expected x = expect_outputs(p, in);
  double worst = 0;
  for (std::size_t i = 0; i < x.plain.o.size(); ++i) {
    CHECK(x.plain.o[i] == rounded(x.plain.o[i], DType::bf16));
    worst = std::max(worst, std::abs(x.plain.o[i] - x.exact.o[i]));
  }
  CHECK(worst > 0x1p-11);
  CHECK(worst < 0x1p-5);
  for (std::size_t i = 0; i < x.plain.m.size(); ++i)
    CHECK(x.plain.m[i] == Approx(x.exact.m[i]).epsilon(1e-6));
}

TEST_CASE("absolute terms bound the signed ones") {
  Problem p = small(8, 8);
  p.options.softcap = 2;
  const Expected x = expect_outputs(p, normal_inputs(p, 3));
  for (auto part : {&Outputs::o, &Outputs::dq, &Outputs::dk, &Outputs::dv})
    for (std::size_t i = 0; i < (x.exact.*part).size(); ++i)
      CHECK((x.size.*part)[i] >= std::abs((x.exact.*part)[i]));
}
