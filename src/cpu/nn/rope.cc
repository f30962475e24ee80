// (a, b) = (x[c], x[c + d/2])  ->  (a cos - b sin, a sin + b cos), angle position * base^(-2c/d);
// the inverse, which is the backward, turns the other way.
#include "contract/pointwise.h"
#include "cpu/nn/element.h"
#include "cpu/ops.h"
#include "cpu/stream.h"

namespace tilefold::cpu {
namespace {

// Tokens [begin, end) of batch * seq.
template <class T>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void rotate_tokens(
    const Rope& args, std::int64_t begin, std::int64_t end) {
  using A = accumulator_t<T>;
  const std::int64_t seq = args.x.shape[1], heads = args.x.shape[2], d = args.x.shape[3];
  const std::int64_t context = args.table.shape[0], half = d / 2;
  const A sign = args.inverse ? A(-1) : A(1);
  for (std::int64_t token = begin; token < end; ++token) {
    const std::int64_t position = args.positions.as<std::int32_t>()[token];
    if (position < 0 || position >= context)
      throw Error(str("rope: position ", position, " of token ", token,
                      " is outside the table; allowed: 0 to ", context - 1));
    const A* cosine = args.table.as<A>() + position * d;
    const A* sine = cosine + half;
    for (std::int64_t h = 0; h < heads; ++h) {
      T* x = args.x.as<T>() + token / seq * args.x.strides[0] + token % seq * args.x.strides[1] +
             h * args.x.strides[2];
#pragma omp simd
      for (std::int64_t c = 0; c < half; ++c) {
        const A a = load(x[c]), b = load(x[c + half]);
        const A s = sign * sine[c];
        store(x[c], a * cosine[c] - b * s);
        store(x[c + half], a * s + b * cosine[c]);
      }
    }
  }
}

}  // namespace

void rope(Stream& stream, const Rope& args) {
  const std::int64_t tokens = args.x.shape[0] * args.x.shape[1];
  const std::int64_t width = args.x.shape[2] * args.x.shape[3];
  for_float_dtype(args.x.dtype, [&]<class T>(Type<T>) {
    for_blocks(pool_of(stream), tokens, rows_per_block(width),
               [&](std::int64_t begin, std::int64_t end) { rotate_tokens<T>(args, begin, end); });
  });
}

}  // namespace tilefold::cpu
