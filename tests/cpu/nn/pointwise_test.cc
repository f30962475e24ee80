// SwiGLU, rotary embedding, fill and copy.
#include "contract/pointwise.h"

#include "contract/cache.h"
#include "tests/cpu/nn/support.h"

namespace tilefold::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

Array swiglu(Context ctx, DType dtype, std::int64_t tokens, std::int64_t ffn,
             const Values& gate_up) {
  Array in(dtype, {tokens, 2 * ffn}, gate_up), y(dtype, {tokens, ffn});
  ops::swiglu_forward(ctx, {.gate_up = in, .y = y});
  return y;
}
Array swiglu_backward(Context ctx, DType dtype, std::int64_t tokens, std::int64_t ffn,
                      const Values& gate_up, const Values& dy) {
  Array in(dtype, {tokens, 2 * ffn}, gate_up), ady(dtype, {tokens, ffn}, dy);
  Array out(dtype, {tokens, 2 * ffn});
  ops::swiglu_backward(ctx, {.dy = ady, .gate_up = in, .dgate_up = out});
  return out;
}

TEST_CASE("swiglu: gradients agree with central differences") {
  Cpu cpu;
  for (const auto& [tokens, ffn] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 17}, {19, 5}}) {
    const Values in = normal_values(tokens * 2 * ffn, 1, 2), r = normal_values(tokens * ffn, 2);
    check_gradient(
        [&](const Values& v) {
          return dot(r, swiglu(cpu.context(), DType::f64, tokens, ffn, v).values());
        },
        in, swiglu_backward(cpu.context(), DType::f64, tokens, ffn, in, r).values());
  }
}

TEST_CASE("swiglu: every dtype against double on the same rounded inputs") {
  for (const DType dtype : kFloats)
    for (const auto& [tokens, ffn] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 17}, {1030, 33}}) {
      INFO(name_of(dtype) << " " << tokens << " x " << ffn);
      Cpu cpu;
      const Values in = rounded(dtype, normal_values(tokens * 2 * ffn, 1, 3));
      const Values dy = rounded(dtype, normal_values(tokens * ffn, 2));
      const Values y = swiglu(cpu.context(), DType::f64, tokens, ffn, in).values();
      const Values g = swiglu_backward(cpu.context(), DType::f64, tokens, ffn, in, dy).values();
      const double u = unit_roundoff(sum_dtype(dtype));
      Values bound(y.size()), g_bound(g.size());
      for (std::size_t i = 0; i < y.size(); ++i) {
        bound[i] = storage_error(dtype, y[i]) + 12 * u * std::abs(y[i]);
        const std::size_t f = static_cast<std::size_t>(ffn), row = i / f, col = i % f;
        const double gate = in[row * 2 * f + col], up = in[row * 2 * f + f + col];
        // dg = dy u (s + g s (1 - s)): the two terms may cancel.
        const double s = 1 / (1 + std::exp(-gate));
        const double terms = std::abs(dy[i] * up) * (s + std::abs(gate) * s * (1 - s + u * 8));
        g_bound[row * 2 * f + col] = storage_error(dtype, g[row * 2 * f + col]) + 16 * u * terms;
        g_bound[row * 2 * f + f + col] =
            storage_error(dtype, g[row * 2 * f + f + col]) * (1 + 1e-2) +
            12 * u * std::abs(g[row * 2 * f + f + col]);
      }
      check_within(swiglu(cpu.context(), dtype, tokens, ffn, in).values(), y, bound);
      check_within(swiglu_backward(cpu.context(), dtype, tokens, ffn, in, dy).values(), g, g_bound);
    }
}

TEST_CASE("swiglu: huge gates give 0 or the gate, never NaN") {
  Cpu cpu;
  REQUIRE(swiglu(cpu.context(), DType::f32, 1, 3, {-1e30, 1e30, 0, 2, 2, 2}).values() ==
          Values{-0.0, Array(DType::f32, {1}, {2e30}).values()[0], 0});
  const Values g =
      swiglu_backward(cpu.context(), DType::f32, 1, 2, {-1e30, 1e30, 2, 2}, {1, 1}).values();
  for (const double x : g) REQUIRE(std::isfinite(x));
}

struct RopeCase {
  std::int64_t batch = 2, seq = 5, heads = 3, d = 8;
  std::int64_t numel() const { return batch * seq * heads * d; }
};

// Positions restart in the middle, as packed documents do.
Values positions_of(const RopeCase& c) {
  Values out(static_cast<std::size_t>(c.batch * c.seq));
  for (std::size_t t = 0; t < out.size(); ++t) out[t] = static_cast<double>(t >= 2 ? t - 2 : t);
  return out;
}

Values rope(Context ctx, DType dtype, const RopeCase& c, const Values& x, bool inverse) {
  const std::int64_t context = c.batch * c.seq;
  Array ax(dtype, {c.batch, c.seq, c.heads, c.d}, x), table(sum_dtype(dtype), {context, c.d});
  Array positions(DType::i32, {c.batch * c.seq}, positions_of(c));
  make_rope_table(context, c.d, 10000, table);
  ops::rope(ctx, {.x = ax, .positions = positions, .table = table, .inverse = inverse});
  return ax.values();
}

TEST_CASE("rope: rotates pairs by position * base^(-2c/d), in every dtype") {
  for (const DType dtype : kFloats)
    for (const std::int64_t d : {2, 6, 34, 128}) {
      INFO(name_of(dtype) << " d " << d);
      const RopeCase c{.d = d};
      Cpu cpu;
      const Values x = rounded(dtype, normal_values(c.numel(), 1));
      const Values y = rope(cpu.context(), dtype, c, x, false), positions = positions_of(c);
      const auto width = static_cast<std::size_t>(d), half = width / 2;
      for (std::size_t row = 0; row * width < x.size(); ++row)
        for (std::size_t k = 0; k < half; ++k) {
          const double position = positions[row / static_cast<std::size_t>(c.heads)];
          const double angle =
              position * std::pow(10000.0, -2.0 * static_cast<double>(k) / static_cast<double>(d));
          const double a = x[row * width + k], b = x[row * width + half + k];
          const double to_a = a * std::cos(angle) - b * std::sin(angle);
          const double to_b = a * std::sin(angle) + b * std::cos(angle);
          const double error = 4 * unit_roundoff(sum_dtype(dtype)) * (std::abs(a) + std::abs(b));
          REQUIRE(std::abs(y[row * width + k] - to_a) <= error + storage_error(dtype, to_a));
          REQUIRE(std::abs(y[row * width + half + k] - to_b) <= error + storage_error(dtype, to_b));
        }
    }
}

TEST_CASE("rope: the inverse is the backward") {
  const RopeCase c{.batch = 1, .seq = 4, .heads = 2, .d = 6};
  Cpu cpu;
  const Values x = normal_values(c.numel(), 1), r = normal_values(c.numel(), 2);
  check_gradient(
      [&](const Values& v) { return dot(r, rope(cpu.context(), DType::f64, c, v, false)); }, x,
      rope(cpu.context(), DType::f64, c, r, true));
}

TEST_CASE("rope: a strided view is rotated, and nothing beside it") {
  // q of a [batch, seq, (heads + 2 kv_heads) d] product, as the model stores it.
  const RopeCase c{.batch = 2, .seq = 3, .heads = 2, .d = 4};
  const std::int64_t wide = 4 * c.d;
  Cpu cpu;
  const Values x = normal_values(c.numel(), 1), y = rope(cpu.context(), DType::f32, c, x, false);
  Values spread(static_cast<std::size_t>(c.batch * c.seq * wide), std::nan(""));
  Values expected = spread;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / 8, at = row * static_cast<std::size_t>(wide) + 4 + i % 8;
    spread[at] = x[i];
    expected[at] = y[i];
  }
  Array all(DType::f32, {c.batch, c.seq, wide}, spread), table(DType::f32, {6, c.d});
  Array positions(DType::i32, {6}, positions_of(c));
  make_rope_table(6, c.d, 10000, table);
  const Tensor heads(Tensor(all).as<float>() + 4, DType::f32, {c.batch, c.seq, 2, 4},
                     {c.seq * wide, wide, 4, 1});
  ops::rope(cpu.context(), {.x = heads, .positions = positions, .table = table, .inverse = false});
  REQUIRE(all.bytes() == Array(DType::f32, {c.batch, c.seq, wide}, expected).bytes());
}

TEST_CASE("rope: a position outside the table is refused by its place") {
  Cpu cpu;
  Array x(DType::f32, {1, 2, 1, 2}, Values(4, 1.0)), table(DType::f32, {3, 2});
  make_rope_table(3, 2, 10000, table);
  Array positions(DType::i32, {2}, {0, 3});
  REQUIRE_THROWS_WITH(
      ops::rope(cpu.context(), {.x = x, .positions = positions, .table = table, .inverse = false}),
      "rope: position 3 of token 1 is outside the table; allowed: 0 to 2");
}

TEST_CASE("fill: every element of every dtype") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64,
                            DType::u16, DType::u8})
    for (const std::int64_t count : {0, 1, 17, 70001}) {
      Cpu cpu;
      Array x(dtype, {count});
      ops::fill(cpu.context(), {.x = x, .value = 3});
      REQUIRE(x.values() == Values(static_cast<std::size_t>(count), 3.0));
    }
}

TEST_CASE("copy: converts between floating dtypes, rounding once") {
  for (const DType from : kFloats)
    for (const DType to : kFloats)
      for (const std::int64_t count : {1, 17, 70001}) {
        INFO(name_of(from) << " to " << name_of(to));
        Cpu cpu;
        Array src(from, {count}, normal_values(count, 1)), dst(to, {count});
        ops::copy(cpu.context(), {.src = src, .dst = dst});
        REQUIRE(dst.values() == rounded(to, src.values()));
      }
}

TEST_CASE("copy: any strides, any dtype") {
  for (const auto& [from, to] : {std::pair{DType::i32, DType::i32},
                                 {DType::f32, DType::f32},
                                 {DType::f32, DType::bf16},
                                 {DType::u16, DType::u16}}) {
    Cpu cpu;
    Values numbers(2 * 3 * 5 * 7);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i);
    Array src(from, {2, 3, 5, 7}, numbers), dst(to, {5, 7, 2, 3});
    // dst[a, b, c, d] seen as [c, d, a, b]
    const Tensor turned(dst.data(), to, {2, 3, 5, 7}, Shape{3, 1, 42, 6});
    ops::copy(cpu.context(), {.src = src, .dst = turned});
    const Values out = dst.values();
    for (std::size_t a = 0; a < 2; ++a)
      for (std::size_t b = 0; b < 3; ++b)
        for (std::size_t c = 0; c < 5; ++c)
          for (std::size_t d = 0; d < 7; ++d)
            REQUIRE(out[c * 42 + d * 6 + a * 3 + b] ==
                    rounded(to, {static_cast<double>(((a * 3 + b) * 5 + c) * 7 + d)})[0]);
  }
}

TEST_CASE("cache_append: keys and values at their places, nothing else written") {
  Cpu cpu;
  constexpr std::int64_t kBatch = 2, kSeq = 3, kHeads = 2, kD = 3, kCache = 5;
  const Shape rows{kBatch, kSeq, kHeads, kD}, cache{kBatch, kCache, kHeads, kD};
  // k and v lie side by side in rows of twice the width.
  Values numbers(kBatch * kSeq * 2 * kHeads * kD);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i + 1);
  Array kv(DType::bf16, {kBatch, kSeq, 2 * kHeads, kD}, numbers);
  const Shape strides{kSeq * 2 * kHeads * kD, 2 * kHeads * kD, kD, 1};
  const auto heads = [&](std::int64_t first) {
    return Tensor(kv.data() + first * kD * 2, DType::bf16, rows, strides);
  };
  Array k(DType::bf16, cache, Values(static_cast<std::size_t>(cache.numel()), 0)), v = k;
  const std::vector<std::int64_t> places{1, 2, 3, 4, -1, 0};
  Array at(DType::i32, {kBatch * kSeq}, Values(places.begin(), places.end()));
  ops::cache_append(cpu.context(),
                    {.k = heads(0), .v = heads(kHeads), .places = at, .k_cache = k, .v_cache = v});
  Values expected_k(static_cast<std::size_t>(cache.numel()), 0), expected_v = expected_k;
  for (std::int64_t token = 0; token < kBatch * kSeq; ++token)
    for (std::int64_t i = 0; i < kHeads * kD; ++i) {
      const std::int64_t place = places[static_cast<std::size_t>(token)];
      if (place < 0) continue;
      const auto to = static_cast<std::size_t>((token / kSeq * kCache + place) * kHeads * kD + i);
      const auto from = static_cast<std::size_t>(token * 2 * kHeads * kD + i);
      expected_k[to] = numbers[from];
      expected_v[to] = numbers[from + kHeads * kD];
    }
  CHECK(k.values() == expected_k);
  CHECK(v.values() == expected_v);
}

TEST_CASE("pointwise: same bits for every number of threads") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::int64_t tokens = 2000, ffn = 33;
    const Values in = normal_values(tokens * 2 * ffn, 1), dy = normal_values(tokens * ffn, 2);
    const RopeCase c{.batch = 3, .seq = 700, .heads = 2, .d = 10};
    const Values x = normal_values(c.numel(), 3);
    check_thread_counts([&](Context ctx) {
      std::vector<std::byte> bits = swiglu(ctx, dtype, tokens, ffn, in).bytes();
      const std::vector<std::byte> more = swiglu_backward(ctx, dtype, tokens, ffn, in, dy).bytes();
      bits.insert(bits.end(), more.begin(), more.end());
      const Values turned = rope(ctx, dtype, c, x, false);
      const auto* at = reinterpret_cast<const std::byte*>(turned.data());
      bits.insert(bits.end(), at, at + turned.size() * sizeof(double));
      return bits;
    });
  }
}

}  // namespace
}  // namespace tilefold::test
