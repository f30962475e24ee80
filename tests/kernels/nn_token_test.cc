// The ops of one token on the GPU against the CPU's, and queued behind each other, where each
// starts before the last has ended.
#include "contract/token.h"
#include "tests/kernels/nn_support.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

struct TokenCase {
  std::int64_t in, heads, kv_heads, d, ffn, vocab;
};

constexpr std::int64_t kContext = 40, kCache = 33;

// A block's ops and the head's, after each other: residual stream, queries, caches, logits.
std::vector<Values> run_token(const TokenCase& t, Context ctx, DType dtype, DType wide,
                              int layers = 1, bool synchronize = false) {
  const DType sums = sum_dtype(dtype);
  const double small = 1 / std::sqrt(static_cast<double>(t.in));
  const std::int64_t qkv = (t.heads + 2 * t.kv_heads) * t.d, q_width = t.heads * t.d;
  const Place x(ctx, wide, {1, t.in}, even_values(t.in, 1));
  const Place norm(ctx, dtype, {t.in}, even_values(t.in, 2));
  const Place w_qkv(ctx, dtype, {qkv, t.in}, even_values(qkv * t.in, 3, small));
  const Place w_out(ctx, dtype, {t.in, q_width}, even_values(t.in * q_width, 4, small));
  const Place w_up(ctx, dtype, {2 * t.ffn, t.in}, even_values(2 * t.ffn * t.in, 5, small));
  const Place w_down(ctx, dtype, {t.in, t.ffn}, even_values(t.in * t.ffn, 6, small));
  const Place w_head(ctx, dtype, {t.vocab, t.in}, even_values(t.vocab * t.in, 7, small));
  const Shape cache{1, kCache, t.kv_heads, t.d};
  const Place k(ctx, dtype, cache, even_values(cache.numel(), 8));
  const Place v(ctx, dtype, cache, even_values(cache.numel(), 9));
  Array angles(sums, {kContext, t.d});
  make_rope_table(kContext, t.d, 10000, angles);
  const Place table(ctx, sums, {kContext, t.d}, angles.values());
  const Place place(ctx, DType::i32, {1}, {29});
  const Place q(ctx, dtype, {1, q_width}), act(ctx, dtype, {1, t.ffn});
  const Place logits(ctx, sums, {1, t.vocab}), rounded_logits(ctx, dtype, {1, t.vocab});
  const auto next = [&] {
    if (synchronize) ctx.stream.synchronize();
  };
  const auto normed = [&](const Place& weight, TokenEpilogue epilogue, const Place& y) {
    NormedLinear n{.x = x, .norm = norm, .weight = weight, .epilogue = epilogue, .y = y};
    if (epilogue == TokenEpilogue::heads)
      n.place = place, n.table = table, n.k_cache = k, n.v_cache = v;
    ops::normed_linear(ctx, n);
    next();
  };
  const auto add = [&](const Place& from, const Place& weight) {
    ops::linear_add(ctx, {.x = from, .weight = weight, .y = x});
    next();
  };
  for (int layer = 0; layer < layers; ++layer) {
    normed(w_qkv, TokenEpilogue::heads, q);
    add(q, w_out);
    normed(w_up, TokenEpilogue::swiglu, act);
    add(act, w_down);
  }
  normed(w_head, TokenEpilogue::none, logits);
  normed(w_head, TokenEpilogue::none, rounded_logits);
  return {x.values(),
          q.values(),
          k.values(),
          v.values(),
          act.values(),
          logits.values(),
          rounded_logits.values()};
}

}  // namespace

TEST_CASE("sanitized: one token's ops: odd and even widths, rows longer than a warp keeps") {
  for (const TokenCase& t :
       {TokenCase{7, 1, 1, 2, 3, 5}, TokenCase{64, 4, 2, 16, 72, 77},
        TokenCase{768, 12, 12, 64, 160, 331}, TokenCase{1032, 2, 1, 128, 2200, 100},
        TokenCase{300, 3, 1, 100, 77, 19}}) {
    INFO("in " << t.in << ", heads " << t.heads << ", ffn " << t.ffn);
    check_gpu([&](Context ctx, DType dtype, DType wide) { return run_token(t, ctx, dtype, wide); });
  }
}

TEST_CASE("one token's ops: the same bits queued together as one by one, 20 times") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  const TokenCase t{768, 12, 12, 64, 2048, 5000};
  const Context ctx = gpu.context();
  const std::vector<Values> expected = run_token(t, ctx, DType::bf16, DType::bf16, 3, true);
  for (int run = 0; run < 20; ++run)
    REQUIRE(run_token(t, ctx, DType::bf16, DType::bf16, 3) == expected);
}

TEST_CASE("one token's ops: a place outside the table makes NaN, outside the cache nothing") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  const Context ctx = gpu.context();
  const Shape cache{1, 3, 1, 8};
  const auto run = [&](double at) {
    const Place x(ctx, DType::f32, {1, 16}, even_values(16, 1));
    const Place norm(ctx, DType::f32, {16}, even_values(16, 2));
    const Place weight(ctx, DType::f32, {24, 16}, even_values(24 * 16, 3));
    const Place table(ctx, DType::f32, {5, 8}, Values(40, 0.5));
    const Place place(ctx, DType::i32, {1}, {at}), q(ctx, DType::f32, {1, 8});
    const Place k(ctx, DType::f32, cache, Values(24, 7)), v(ctx, DType::f32, cache, Values(24, 7));
    ops::normed_linear(ctx, {.x = x,
                             .norm = norm,
                             .weight = weight,
                             .epilogue = TokenEpilogue::heads,
                             .y = q,
                             .place = place,
                             .table = table,
                             .k_cache = k,
                             .v_cache = v});
    return std::vector<Values>{q.values(), k.values(), v.values()};
  };
  const std::vector<Values> inside = run(2), beyond = run(4), outside = run(5), below = run(-1);
  CHECK(std::isfinite(inside[0][0]));
  CHECK(inside[1][16] != 7);
  CHECK(beyond[1] == Values(24, 7));
  CHECK(beyond[2] == Values(24, 7));
  for (const auto* bad : {&outside, &below}) {
    CHECK(std::isnan((*bad)[0][0]));
    CHECK((*bad)[2] == Values(24, 7));
  }
}

TEST_CASE("the likeliest token: ties, both zeros, infinities, NaN, ids that are not usable") {
  Gpu gpu = gpu_or_skip();
  if (!gpu) return;
  Cpu cpu;
  const auto likeliest = [](Context ctx, const Values& values, std::int64_t usable) {
    const Place logits(ctx, DType::f32, {static_cast<std::int64_t>(values.size())}, values);
    const Place token(ctx, DType::i32, {1});
    ops::likeliest(ctx, {.logits = logits, .usable = usable, .token = token});
    return token.values()[0];
  };
  const double infinite = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const auto check = [&](const Values& values, std::int64_t usable, double expected) {
    CHECK(likeliest(cpu.context(), values, usable) == expected);
    CHECK(likeliest(gpu.context(), values, usable) == expected);
  };
  check({3}, 1, 0);
  check({-2, -1, -1, 5}, 3, 1);
  check({-0.0, 0.0, -1}, 3, 0);
  check(Values(40, -infinite), 40, 0);
  check({1, infinite, nan, nan, 2}, 5, -3);
  check({1, 4, nan}, 2, 1);
  for (const std::int64_t count : {1023, 8193, 50304}) {
    Values values = even_values(count, static_cast<unsigned>(count), 0.1);
    values[static_cast<std::size_t>(count - 2)] = 9;
    values[static_cast<std::size_t>(count / 2)] = 9;
    values[static_cast<std::size_t>(count - 1)] = 10;
    check(values, count - 1, static_cast<double>(count / 2));
    check(values, count, static_cast<double>(count - 1));
  }
}
