// y = epilogue(x W^T + b) and its backward, against plain loops and central differences in double.
#include "contract/linear.h"

#include "tests/cpu/nn/support.h"

namespace tilefold::test {
namespace {

struct Size {
  std::int64_t tokens, in, out;
};

double gelu(double z) { return 0.5 * z * (1 + std::erf(z / std::sqrt(2.0))); }

struct Forward {
  Values y, pre;
};
Forward run_forward(Context ctx, DType dtype, DType y_dtype, Size s, const Values& x,
                    const Values& w, const Values* b, Epilogue epilogue) {
  Array ax(dtype, {s.tokens, s.in}, x), aw(dtype, {s.out, s.in}, w), ab;
  if (b) ab = Array(dtype, {s.out}, *b);
  Array y(y_dtype, {s.tokens, s.out}), pre;
  if (epilogue == Epilogue::gelu) pre = Array(dtype, {s.tokens, s.out});
  Array scratch = workspace(linear_workspace({s.tokens, s.in, s.out, dtype}, ctx.device.info()));
  ops::linear_forward(ctx, {.x = ax,
                            .weight = aw,
                            .bias = ab,
                            .y = y,
                            .epilogue = epilogue,
                            .pre = pre,
                            .workspace = scratch.span()});
  scratch.values();
  return {y.values(), epilogue == Epilogue::gelu ? pre.values() : Values{}};
}

struct Backward {
  Values dx, dw, db;
};
// dw and db start from 1 and 2, which they must keep.
Backward run_backward(Context ctx, DType dtype, Size s, const Values& dy, const Values& x,
                      const Values& w, const Values* x_pre,
                      std::vector<std::byte>* bits = nullptr) {
  Array ady(dtype, {s.tokens, s.out}, dy), ax(dtype, {s.tokens, s.in}, x);
  Array aw(dtype, {s.out, s.in}, w), apre;
  if (x_pre) apre = Array(dtype, {s.tokens, s.in}, *x_pre);
  Array dx(dtype, {s.tokens, s.in});
  Array dw(sum_dtype(dtype), {s.out, s.in}, Values(w.size(), 1.0));
  Array db(sum_dtype(dtype), {s.out}, Values(static_cast<std::size_t>(s.out), 2.0));
  Array scratch = workspace(linear_workspace({s.tokens, s.in, s.out, dtype}, ctx.device.info()));
  ops::linear_backward(ctx, {.dy = ady,
                             .x = ax,
                             .weight = aw,
                             .x_pre = apre,
                             .dx = dx,
                             .dweight = dw,
                             .dbias = db,
                             .workspace = scratch.span()});
  scratch.values();
  if (bits) {
    for (Array* a : {&dx, &dw, &db}) {
      const std::vector<std::byte> more = a->bytes();
      bits->insert(bits->end(), more.begin(), more.end());
    }
  }
  Backward out{dx.values(), dw.values(), db.values()};
  for (double& g : out.dw) g -= 1;
  for (double& g : out.db) g -= 2;
  return out;
}

// Plain loops: the sums and the sums of absolute values of their terms.
struct Sums {
  Values value, size;
};
// c[i, j] = sum_k a[i, k] b[k, j] through strides
Sums product(std::int64_t m, std::int64_t n, std::int64_t k, const Values& a, std::int64_t ai,
             std::int64_t ak, const Values& b, std::int64_t bk, std::int64_t bj) {
  Sums out{Values(static_cast<std::size_t>(m * n)), Values(static_cast<std::size_t>(m * n))};
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        const double term = a[static_cast<std::size_t>(i * ai + l * ak)] *
                            b[static_cast<std::size_t>(l * bk + j * bj)];
        sum += term;
        size += std::abs(term);
      }
      out.value[static_cast<std::size_t>(i * n + j)] = sum;
      out.size[static_cast<std::size_t>(i * n + j)] = size;
    }
  return out;
}

// A float32 sum of n products errs by at most n u times the sum of their sizes (Higham, Accuracy
// and Stability of Numerical Algorithms, 3.1); storing it adds one rounding of the storage type.
Values sum_bound(const Sums& sums, std::int64_t n, DType accumulator, DType stored) {
  Values bound(sums.value.size());
  for (std::size_t i = 0; i < bound.size(); ++i)
    bound[i] = static_cast<double>(n + 1) * unit_roundoff(accumulator) * sums.size[i] +
               storage_error(stored, sums.value[i]);
  return bound;
}

TEST_CASE("linear: two layers with gelu between agree with central differences") {
  for (const Size s : {Size{1, 1, 1}, Size{3, 5, 2}, Size{17, 7, 13}, Size{70, 3, 4}}) {
    INFO(s.tokens << " x " << s.in << " x " << s.out);
    Cpu cpu;
    const Size second{s.tokens, s.out, s.in};
    const Values x = normal_values(s.tokens * s.in, 1), w1 = normal_values(s.out * s.in, 2);
    const Values b1 = normal_values(s.out, 3), w2 = normal_values(s.in * s.out, 4);
    const Values b2 = normal_values(s.in, 5), r = normal_values(s.tokens * s.in, 6);
    const auto first = [&](const Values& x_, const Values& w_, const Values& b_) {
      return run_forward(cpu.context(), DType::f64, DType::f64, s, x_, w_, &b_, Epilogue::gelu);
    };
    const auto loss = [&](const Values& x_, const Values& w1_, const Values& b1_, const Values& w2_,
                          const Values& b2_) {
      const Values hidden = first(x_, w1_, b1_).y;
      return dot(r, run_forward(cpu.context(), DType::f64, DType::f64, second, hidden, w2_, &b2_,
                                Epilogue::none)
                        .y);
    };
    const Forward hidden = first(x, w1, b1);
    const Backward g2 =
        run_backward(cpu.context(), DType::f64, second, r, hidden.y, w2, &hidden.pre);
    const Backward g1 = run_backward(cpu.context(), DType::f64, s, g2.dx, x, w1, nullptr);
    check_gradient([&](const Values& v) { return loss(v, w1, b1, w2, b2); }, x, g1.dx);
    check_gradient([&](const Values& v) { return loss(x, v, b1, w2, b2); }, w1, g1.dw);
    check_gradient([&](const Values& v) { return loss(x, w1, v, w2, b2); }, b1, g1.db);
    check_gradient([&](const Values& v) { return loss(x, w1, b1, v, b2); }, w2, g2.dw);
    check_gradient([&](const Values& v) { return loss(x, w1, b1, w2, v); }, b2, g2.db);
  }
}

TEST_CASE("linear: every dtype within the error of its sums, at odd sizes") {
  // 1025 tokens cross the stage of 16-bit operands.
  for (const Size s : {Size{1, 1, 1}, Size{3, 17, 5}, Size{129, 33, 65}, Size{1025, 19, 34}})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      INFO(s.tokens << " x " << s.in << " x " << s.out << " " << name_of(dtype));
      Cpu cpu;
      const DType sums = sum_dtype(dtype);
      const Values x = rounded(dtype, normal_values(s.tokens * s.in, 1));
      const Values w = rounded(dtype, normal_values(s.out * s.in, 2));
      const Values b = rounded(dtype, normal_values(s.out, 3));
      const Values dy = rounded(dtype, normal_values(s.tokens * s.out, 4));
      Sums y = product(s.tokens, s.out, s.in, x, s.in, 1, w, 1, s.in);
      for (const DType y_dtype : {dtype, sums})
        check_within(run_forward(cpu.context(), dtype, y_dtype, s, x, w, nullptr, Epilogue::none).y,
                     y.value, sum_bound(y, s.in, sums, y_dtype));
      for (std::size_t i = 0; i < y.value.size(); ++i) {
        y.value[i] += b[i % static_cast<std::size_t>(s.out)];
        y.size[i] += std::abs(b[i % static_cast<std::size_t>(s.out)]);
      }
      const Forward f = run_forward(cpu.context(), dtype, dtype, s, x, w, &b, Epilogue::gelu);
      check_within(f.pre, y.value, sum_bound(y, s.in + 1, sums, dtype));
      // gelu is taken of the stored z; float32 errors of a few ulp of z, and one rounding.
      Values expected(f.pre.size()), bound(f.pre.size());
      for (std::size_t i = 0; i < f.pre.size(); ++i) {
        expected[i] = gelu(f.pre[i]);
        bound[i] = 6 * unit_roundoff(sums) * std::abs(f.pre[i]) + storage_error(dtype, expected[i]);
      }
      check_within(f.y, expected, bound);

      const Backward g = run_backward(cpu.context(), dtype, s, dy, x, w, nullptr);
      const Sums dx = product(s.tokens, s.in, s.out, dy, s.out, 1, w, s.in, 1);
      check_within(g.dx, dx.value, sum_bound(dx, s.out, sums, dtype));
      Sums dw = product(s.out, s.in, s.tokens, dy, 1, s.out, x, s.in, 1);
      for (double& size : dw.size) size += 1;  // what dw held
      check_within(g.dw, dw.value, sum_bound(dw, s.tokens + 1, sums, sums));
      Sums db = product(s.out, 1, s.tokens, dy, 1, s.out,
                        Values(static_cast<std::size_t>(s.tokens), 1.0), 1, 1);
      for (double& size : db.size) size += 2;
      check_within(g.db, db.value, sum_bound(db, s.tokens + 1, sums, sums));
    }
}

TEST_CASE("linear: same bits for every number of threads") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const Size s : {Size{3, 17, 5}, Size{1100, 33, 130}}) {
      INFO(name_of(dtype) << " " << s.tokens);
      const Values x = normal_values(s.tokens * s.in, 1), w = normal_values(s.out * s.in, 2);
      const Values dy = normal_values(s.tokens * s.out, 3), pre = normal_values(s.tokens * s.in, 4);
      check_thread_counts([&](Context ctx) {
        std::vector<std::byte> bits;
        run_backward(ctx, dtype, s, dy, x, w, &pre, &bits);
        const Forward f = run_forward(ctx, dtype, dtype, s, x, w, nullptr, Epilogue::gelu);
        for (const Values* v : {&f.y, &f.pre}) {
          const auto* at = reinterpret_cast<const std::byte*>(v->data());
          bits.insert(bits.end(), at, at + v->size() * sizeof(double));
        }
        return bits;
      });
    }
}

TEST_CASE("linear: strided rows give the bits of dense ones, and what lies between is kept") {
  const Size s{37, 6, 9};
  const std::int64_t gap = 5;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    Cpu cpu;
    const Values x = normal_values(s.tokens * s.in, 1), w = normal_values(s.out * s.in, 2);
    const Values dy = normal_values(s.tokens * s.out, 3);
    const Forward f = run_forward(cpu.context(), dtype, dtype, s, x, w, nullptr, Epilogue::gelu);
    const Backward g = run_backward(cpu.context(), dtype, s, dy, x, w, &x);
    const auto spread = [&](const Values& v, std::int64_t width) {
      Values out(static_cast<std::size_t>(s.tokens * (width + gap)), std::nan(""));
      for (std::int64_t t = 0; t < s.tokens; ++t)
        for (std::int64_t c = 0; c < width; ++c)
          out[static_cast<std::size_t>(t * (width + gap) + c)] =
              v[static_cast<std::size_t>(t * width + c)];
      return Array(dtype, {s.tokens, width + gap}, out);
    };
    const auto view = [&](Array& a, std::int64_t width) { return Tensor(a).sliced(1, 0, width); };
    const Values none_in(x.size(), std::nan("")), none_out(dy.size(), std::nan(""));
    Array sx = spread(x, s.in), sdy = spread(dy, s.out), sy = spread(none_out, s.out);
    Array spre = spread(none_out, s.out), sdx = spread(none_in, s.in);
    Array aw(dtype, {s.out, s.in}, w), dw(sum_dtype(dtype), {s.out, s.in}, Values(w.size(), 1.0));
    Array scratch = workspace(linear_workspace({s.tokens, s.in, s.out, dtype}, cpu.device->info()));
    ops::linear_forward(cpu.context(), {.x = view(sx, s.in),
                                        .weight = aw,
                                        .bias = {},
                                        .y = view(sy, s.out),
                                        .epilogue = Epilogue::gelu,
                                        .pre = view(spre, s.out),
                                        .workspace = scratch.span()});
    ops::linear_backward(cpu.context(), {.dy = view(sdy, s.out),
                                         .x = view(sx, s.in),
                                         .weight = aw,
                                         .x_pre = view(sx, s.in),
                                         .dx = view(sdx, s.in),
                                         .dweight = dw,
                                         .dbias = {},
                                         .workspace = scratch.span()});
    REQUIRE(sy.bytes() == spread(f.y, s.out).bytes());
    REQUIRE(spre.bytes() == spread(f.pre, s.out).bytes());
    REQUIRE(sdx.bytes() == spread(g.dx, s.in).bytes());
    Values sums = dw.values();
    for (double& v : sums) v -= 1;
    REQUIRE(sums == g.dw);
  }
}

TEST_CASE("linear: no tokens leave the gradients as they are") {
  Cpu cpu;
  Array w(DType::f32, {4, 3}, normal_values(12, 1)), dw(DType::f32, {4, 3}, Values(12, 1.0));
  const Tensor none(nullptr, DType::f32, {0, 3}), none_out(nullptr, DType::f32, {0, 4});
  ops::linear_forward(
      cpu.context(),
      {.x = none, .weight = w, .bias = {}, .y = none_out, .pre = {}, .workspace = {}});
  ops::linear_backward(cpu.context(), {.dy = none_out,
                                       .x = none,
                                       .weight = w,
                                       .x_pre = {},
                                       .dx = none,
                                       .dweight = dw,
                                       .dbias = {},
                                       .workspace = {}});
  REQUIRE(dw.values() == Values(12, 1.0));
}

}  // namespace
}  // namespace tilefold::test
