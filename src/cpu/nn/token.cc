// y = epilogue(rms_norm(x) W^T) and y += x W^T of one token (contract/token.h), a sum at a time:
// what generation on the CPU composes of other ops, for tests.
#include "contract/token.h"

#include <cmath>

#include "cpu/nn/element.h"
#include "cpu/nn/vector_math.h"
#include "cpu/ops.h"
#include "cpu/stream.h"

namespace tilefold::cpu {
namespace {

template <class T>
accumulator_t<T> rounded(accumulator_t<T> x) {
  T y;
  store(y, x);
  return load(y);
}

// 1 / sqrt(mean(x^2) + eps)
template <class T, class R>
accumulator_t<T> reciprocal_size(const R* x, std::int64_t in, float eps) {
  using A = accumulator_t<T>;
  A square = 0;
  for (std::int64_t c = 0; c < in; ++c) square += load(x[c]) * load(x[c]);
  return A(1) / std::sqrt(square / static_cast<A>(in) + static_cast<A>(eps));
}

// The two halves of head `head` at c: turned where there is an angle.
template <class T>
void finish_pair(const NormedLinear& args, std::int64_t head, std::int64_t c, accumulator_t<T> a,
                 accumulator_t<T> b) {
  using A = accumulator_t<T>;
  const std::int64_t kv = args.k_cache.shape[2], d = args.k_cache.shape[3], half = d / 2;
  const std::int64_t heads = args.y.shape[1] / d, place = args.place.as<std::int32_t>()[0];
  const bool key = head >= heads && head < heads + kv;
  T* to = args.y.as<T>() + head * d;
  if (head >= heads) {
    if (place < 0 || place >= args.k_cache.shape[1]) return;
    to = (key ? args.k_cache : args.v_cache).as<T>() + (place * kv + (head - heads) % kv) * d;
  }
  A cosine = 1, sine = 0;
  if (head < heads + kv) {
    const A* angle = args.table.as<A>() + place * d + c;
    cosine = angle[0], sine = angle[half];
  }
  store(to[c], a * cosine - b * sine);
  store(to[c + half], a * sine + b * cosine);
}

template <class T, class R>
void normed(Stream& stream, const NormedLinear& args) {
  using A = accumulator_t<T>;
  const std::int64_t out = args.weight.shape[0], in = args.weight.shape[1];
  const R* x = args.x.as<R>();
  const A rstd = reciprocal_size<T>(x, in, args.eps);
  const auto product = [&](std::int64_t row) {
    const T *w = args.weight.as<T>() + row * in, *norm = args.norm.as<T>();
    A sum = 0;
    for (std::int64_t c = 0; c < in; ++c)
      sum += load(w[c]) * rounded<T>(load(x[c]) * rstd * load(norm[c]));
    return sum;
  };
  const auto each = [&](std::int64_t count, auto&& finish) {
    for_blocks(pool_of(stream), count, rows_per_block(in),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) finish(i);
               });
  };
  switch (args.epilogue) {
    case TokenEpilogue::none:
      return for_wider_dtype<T>(args.y.dtype, [&]<class Y>(Type<Y>) {
        each(out, [&](std::int64_t i) { store(args.y.as<Y>()[i], product(i)); });
      });
    case TokenEpilogue::swiglu:
      return each(out / 2, [&](std::int64_t i) {
        const A g = rounded<T>(product(i)), u = rounded<T>(product(i + out / 2));
        store(args.y.as<T>()[i], g * sigmoid(g) * u);
      });
    case TokenEpilogue::heads:
      const std::int64_t place = args.place.as<std::int32_t>()[0], context = args.table.shape[0];
      if (place < 0 || place >= context)
        throw Error(str("normed_linear: place ", place, " is outside the table; allowed: 0 to ",
                        context - 1));
      const std::int64_t half = args.k_cache.shape[3] / 2;
      return each(out / 2, [&](std::int64_t i) {
        const std::int64_t head = i / half, row = head * 2 * half + i % half;
        finish_pair<T>(args, head, i % half, rounded<T>(product(row)),
                       rounded<T>(product(row + half)));
      });
  }
}

}  // namespace

void normed_linear(Stream& stream, const NormedLinear& args) {
  for_float_dtype(args.weight.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(args.x.dtype, [&]<class R>(Type<R>) { normed<T, R>(stream, args); });
  });
}

void linear_add(Stream& stream, const LinearAdd& args) {
  const std::int64_t out = args.weight.shape[0], in = args.weight.shape[1];
  for_float_dtype(args.weight.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(args.y.dtype, [&]<class R>(Type<R>) {
      for_blocks(pool_of(stream), out, rows_per_block(in),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     const T *w = args.weight.as<T>() + row * in, *x = args.x.as<T>();
                     accumulator_t<T> sum = 0;
                     for (std::int64_t c = 0; c < in; ++c) sum += load(w[c]) * load(x[c]);
                     R& y = args.y.as<R>()[row];
                     store(y, load(y) + rounded<T>(sum));
                   }
                 });
    });
  });
}

void likeliest(Stream&, const Likeliest& args) {
  for_float_dtype(args.logits.dtype, [&]<class T>(Type<T>) {
    const T* z = args.logits.as<T>();
    std::int32_t& token = *args.token.as<std::int32_t>();
    token = 0;
    for (std::int32_t i = 0; i < args.usable; ++i) {
      const auto x = load(z[i]);
      if (std::isnan(x)) return void(token = -1 - i);
      if (x > load(z[token])) token = i;
    }
  });
}

}  // namespace tilefold::cpu
