// The ops of one token against the ops that they stand for, one after the other.
#include "contract/token.h"

#include "contract/workspace.h"
#include "tests/cpu/nn/support.h"

using namespace tilefold;
using namespace tilefold::test;

namespace {

constexpr std::int64_t kIn = 24, kHeads = 4, kKv = 2, kD = 6, kCache = 5, kContext = 7;

Array array(DType dtype, const Shape& shape, unsigned seed, double scale = 1) {
  return Array(dtype, shape, normal_values(shape.numel(), seed, scale));
}

// What stands around the product: x and its norm.
struct Input {
  Input(DType dtype, DType wide, std::int64_t out)
      : x(array(wide, {1, kIn}, 1)),
        norm(array(dtype, {kIn}, 2)),
        weight(array(dtype, {out, kIn}, 3, 0.2)) {}
  NormedLinear normed(TokenEpilogue epilogue, Tensor y) {
    return {.eps = 1e-3f, .x = x, .norm = norm, .weight = weight, .epilogue = epilogue, .y = y};
  }
  // The norm and the product as ops of their own, [1, out] of `to`.
  Array product(Context ctx, DType dtype, DType to) {
    const std::int64_t out = Tensor(weight).shape[0];
    Array n(dtype, {1, kIn}), rstd(sum_dtype(dtype), {1}), z(to, {1, out});
    ResidualNormForward norm_args;
    norm_args.eps = 1e-3f;
    norm_args.residual = x, norm_args.weight = norm, norm_args.y = n, norm_args.rstd = rstd;
    ops::residual_norm_forward(ctx, norm_args);
    Array scratch = workspace(
        linear_workspace({.tokens = 1, .in = kIn, .out = out, .dtype = dtype}, ctx.device.info()));
    LinearForward linear;
    linear.x = n, linear.weight = weight, linear.y = z, linear.workspace = scratch.span();
    ops::linear_forward(ctx, linear);
    return z;
  }
  Array x, norm, weight;
};

// Equal but for the order of sums, which may move a rounding to the dtype.
void check_alike(const Values& got, const Values& expected, DType dtype) {
  Values bound;
  for (const double x : expected) {
    const double rounding = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-5 : 0.02;
    bound.push_back(rounding * (1 + std::abs(x)));
  }
  check_within(got, expected, bound);
}

void for_dtypes(const std::function<void(Context, DType, DType)>& body) {
  Cpu cpu;
  for (const auto& [dtype, wide] : {std::pair{DType::f64, DType::f64},
                                    {DType::f32, DType::f32},
                                    {DType::bf16, DType::bf16},
                                    {DType::bf16, DType::f32},
                                    {DType::f16, DType::f32}}) {
    INFO(name_of(dtype) << ", residual " << name_of(wide));
    body(cpu.context(), dtype, wide);
  }
}

}  // namespace

TEST_CASE("normed_linear: the norm, then the product, of the model's dtype or float32") {
  for_dtypes([](Context ctx, DType dtype, DType wide) {
    for (const DType to : {dtype, sum_dtype(dtype)}) {
      Input in(dtype, wide, 11);
      Array y(to, {1, 11}), expected = in.product(ctx, dtype, to);
      ops::normed_linear(ctx, in.normed(TokenEpilogue::none, y));
      check_alike(y.values(), expected.values(), dtype);
    }
  });
}

TEST_CASE("normed_linear: SwiGLU of the product") {
  for_dtypes([](Context ctx, DType dtype, DType wide) {
    Input in(dtype, wide, 10);
    Array y(dtype, {1, 5}), expected(dtype, {1, 5}), z = in.product(ctx, dtype, dtype);
    ops::normed_linear(ctx, in.normed(TokenEpilogue::swiglu, y));
    ops::swiglu_forward(ctx, {.gate_up = z, .y = expected});
    check_alike(y.values(), expected.values(), dtype);
  });
}

TEST_CASE("normed_linear: queries turned, keys and values into their place of the caches") {
  for_dtypes([](Context ctx, DType dtype, DType wide) {
    for (const double at : {0.0, 4.0, 6.0}) {  // the last: in the table, outside the cache
      constexpr std::int64_t kOut = (kHeads + 2 * kKv) * kD;
      Input in(dtype, wide, kOut);
      Array table(sum_dtype(dtype), {kContext, kD}), place(DType::i32, {1}, {at});
      make_rope_table(kContext, kD, 10000, table);
      const Shape cache{1, kCache, kKv, kD};
      Array q(dtype, {1, kHeads * kD}), k = array(dtype, cache, 4), v = array(dtype, cache, 5);
      Array expected_k = k, expected_v = v;
      NormedLinear args = in.normed(TokenEpilogue::heads, q);
      args.place = place, args.table = table, args.k_cache = k, args.v_cache = v;
      ops::normed_linear(ctx, args);

      Array z = in.product(ctx, dtype, dtype);
      const auto heads = [&](std::int64_t first, std::int64_t count) {
        return Tensor(z.data() + first * kD * size_of(dtype), dtype, {1, 1, count, kD});
      };
      ops::rope(ctx, {.x = heads(0, kHeads + kKv), .positions = place, .table = table});
      ops::cache_append(ctx, {.k = heads(kHeads, kKv),
                              .v = heads(kHeads + kKv, kKv),
                              .places = place,
                              .k_cache = expected_k,
                              .v_cache = expected_v});
      Values expected_q = z.values();
      expected_q.resize(kHeads * kD);
      check_alike(q.values(), expected_q, dtype);
      check_alike(k.values(), expected_k.values(), dtype);
      check_alike(v.values(), expected_v.values(), dtype);
    }
  });
}

TEST_CASE("linear_add: the product, rounded to the model's dtype, added to the residual stream") {
  for_dtypes([](Context ctx, DType dtype, DType wide) {
    Array x = array(dtype, {1, kIn}, 1), weight = array(dtype, {9, kIn}, 2, 0.2);
    Array y = array(wide, {1, 9}, 3), z(dtype, {1, 9});
    Values expected = y.values();
    ops::linear_add(ctx, {.x = x, .weight = weight, .y = y});
    Array scratch = workspace(
        linear_workspace({.tokens = 1, .in = kIn, .out = 9, .dtype = dtype}, ctx.device.info()));
    LinearForward linear;
    linear.x = x, linear.weight = weight, linear.y = z, linear.workspace = scratch.span();
    ops::linear_forward(ctx, linear);
    const Values product = z.values();
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += product[i];
    check_alike(y.values(), rounded(wide, expected), dtype);
  });
}

TEST_CASE("one token's ops: a place outside the table, shapes and dtypes are refused by name") {
  Cpu cpu;
  const Context ctx = cpu.context();
  Input in(DType::bf16, DType::f32, (kHeads + 2 * kKv) * kD);
  Array table(DType::f32, {kContext, kD}), place(DType::i32, {1}, {7});
  make_rope_table(kContext, kD, 10000, table);
  const Shape cache{1, kCache, kKv, kD};
  Array q(DType::bf16, {1, kHeads * kD}), k(DType::bf16, cache), v(DType::bf16, cache);
  NormedLinear args = in.normed(TokenEpilogue::heads, q);
  args.place = place, args.table = table, args.k_cache = k, args.v_cache = v;
  CHECK_THROWS_WITH(ops::normed_linear(ctx, args),
                    "normed_linear: place 7 is outside the table; allowed: 0 to 6");
  args.epilogue = TokenEpilogue::swiglu;
  CHECK_THROWS_WITH(ops::normed_linear(ctx, args),
                    "normed_linear: place is given; it must be empty without heads");
  Array short_y(DType::bf16, {1, 23});
  CHECK_THROWS_WITH(ops::normed_linear(ctx, in.normed(TokenEpilogue::swiglu, short_y)),
                    "normed_linear: y has shape [1, 23]; [1, out / 2] = [1, 24] is needed");
  Array x(DType::bf16, {1, kIn}), wrong(DType::f16, {1, 48});
  CHECK_THROWS_WITH(ops::linear_add(ctx, {.x = x, .weight = in.weight, .y = wrong}),
                    "linear_add: y is f16; allowed: bf16, f32");
}

TEST_CASE("likeliest: the first of the largest usable, or the first NaN") {
  Cpu cpu;
  const auto likeliest = [&](const Values& values, std::int64_t usable) {
    Array logits(DType::f64, {static_cast<std::int64_t>(values.size())}, values);
    Array token(DType::i32, {1});
    ops::likeliest(cpu.context(), {.logits = logits, .usable = usable, .token = token});
    return token.values()[0];
  };
  const double infinite = std::numeric_limits<double>::infinity(), nan = std::nan("");
  CHECK(likeliest({-0.0, 0.0, -1, 7}, 3) == 0);
  CHECK(likeliest({-2, -1, -1, 5}, 3) == 1);
  CHECK(likeliest(Values(5, -infinite), 5) == 0);
  CHECK(likeliest({1, infinite, nan, nan}, 4) == -3);
  CHECK(likeliest({1, infinite, nan, nan}, 2) == 1);
  CHECK_THROWS_WITH(likeliest({1, 2}, 3),
                    "likeliest: usable is 3; allowed: 1 to vocab 2, below 2^31");
}
