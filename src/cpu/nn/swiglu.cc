// y = silu(g) u      silu(g) = g sigma(g), sigma(g) = 1 / (1 + exp(-g))
// dg = dy u sigma(g) (1 + g (1 - sigma(g)))      du = dy silu(g)
#include "contract/pointwise.h"
#include "cpu/nn/element.h"
#include "cpu/nn/vector_math.h"
#include "cpu/ops.h"
#include "cpu/stream.h"

namespace tilefold::cpu {
namespace {

// gate_up: rows [2 ffn], g then u.
template <class T>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void forward_rows(
    std::int64_t ffn, std::int64_t begin, std::int64_t end, const T* gate_up, T* y) {
  using A = accumulator_t<T>;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* gate = gate_up + row * 2 * ffn;
    const T* up = gate + ffn;
    T* to = y + row * ffn;
#pragma omp simd
    for (std::int64_t c = 0; c < ffn; ++c) {
      const A g = load(gate[c]);
      store(to[c], g * sigmoid(g) * load(up[c]));
    }
  }
}

template <class T>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void backward_rows(
    std::int64_t ffn, std::int64_t begin, std::int64_t end, const T* dy, const T* gate_up,
    T* dgate_up) {
  using A = accumulator_t<T>;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* from = dy + row * ffn;
    const T* gate = gate_up + row * 2 * ffn;
    const T* up = gate + ffn;
    T* dgate = dgate_up + row * 2 * ffn;
    T* dup = dgate + ffn;
#pragma omp simd
    for (std::int64_t c = 0; c < ffn; ++c) {
      const A g = load(gate[c]), u = load(up[c]), d = load(from[c]);
      const A s = sigmoid(g);
      store(dgate[c], d * u * s * (A(1) + g * (A(1) - s)));
      store(dup[c], d * g * s);
    }
  }
}

}  // namespace

void swiglu_forward(Stream& stream, const SwigluForward& args) {
  const std::int64_t tokens = args.y.shape[0], ffn = args.y.shape[1];
  for_float_dtype(args.y.dtype, [&]<class T>(Type<T>) {
    for_blocks(pool_of(stream), tokens, rows_per_block(ffn),
               [&](std::int64_t begin, std::int64_t end) {
                 forward_rows<T>(ffn, begin, end, args.gate_up.as<T>(), args.y.as<T>());
               });
  });
}

void swiglu_backward(Stream& stream, const SwigluBackward& args) {
  const std::int64_t tokens = args.dy.shape[0], ffn = args.dy.shape[1];
  for_float_dtype(args.dy.dtype, [&]<class T>(Type<T>) {
    for_blocks(pool_of(stream), tokens, rows_per_block(ffn),
               [&](std::int64_t begin, std::int64_t end) {
                 backward_rows<T>(ffn, begin, end, args.dy.as<T>(), args.gate_up.as<T>(),
                                  args.dgate_up.as<T>());
               });
  });
}

}  // namespace tilefold::cpu
