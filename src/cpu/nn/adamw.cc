// g = c grad / n      norm = sqrt(grad_square_sum) / n      c = clip > 0 ? min(1, clip / norm) : 1
// m = b1 m + (1 - b1) g      v = b2 v + (1 - b2) g^2
// w -= lr (m / bias_correction1 / (sqrt(v / bias_correction2) + eps) + decay w)
// Nothing is written when the norm is not finite or n is 0.
#include <cmath>

#include "contract/optimizer.h"
#include "cpu/nn/element.h"
#include "cpu/ops.h"
#include "cpu/stream.h"

namespace tilefold::cpu {
namespace {

// Elements a block updates: 64 KiB each of w, grad, m and v.
constexpr std::int64_t kBlock = 16384;

template <class A>
struct Constants {
  A scale;  // c / n
  A beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
  A inverse_correction1, inverse_correction2;
  A learning_rate, decay;
};

template <class A>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void update(
    std::int64_t count, const Constants<A>& k, A* master, const A* grad, A* m, A* v) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const A g = grad[i] * k.scale;
    m[i] = k.beta1 * m[i] + k.one_minus_beta1 * g;
    v[i] = k.beta2 * v[i] + k.one_minus_beta2 * g * g;
    const A direction =
        m[i] * k.inverse_correction1 / (std::sqrt(v[i] * k.inverse_correction2) + k.eps);
    master[i] -= k.learning_rate * (direction + k.decay * master[i]);
  }
}

template <class T>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void round_copy(
    std::int64_t count, const float* master, T* weight) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) store(weight[i], master[i]);
}

template <class A>
void update_block(const AdamW& args, double scale, const AdamWParameter& p, std::int64_t begin,
                  std::int64_t count) {
  const StepState& state = *args.state;
  const Constants<A> k = {
      .scale = static_cast<A>(scale),
      .beta1 = static_cast<A>(args.beta1),
      .one_minus_beta1 = static_cast<A>(1 - args.beta1),
      .beta2 = static_cast<A>(args.beta2),
      .one_minus_beta2 = static_cast<A>(1 - args.beta2),
      .eps = static_cast<A>(args.eps),
      .inverse_correction1 = static_cast<A>(1 / state.bias_correction1),
      .inverse_correction2 = static_cast<A>(1 / state.bias_correction2),
      .learning_rate = static_cast<A>(state.learning_rate),
      .decay = static_cast<A>(p.decay ? args.weight_decay : 0.0),
  };
  A* master = p.master.as<A>() + begin;
  update<A>(count, k, master, p.grad.as<A>() + begin, p.m.as<A>() + begin, p.v.as<A>() + begin);
  if constexpr (std::is_same_v<A, float>) {
    if (!p.weight) return;
    if (p.weight.dtype == DType::bf16) round_copy(count, master, p.weight.as<bf16>() + begin);
    if (p.weight.dtype == DType::f16) round_copy(count, master, p.weight.as<f16>() + begin);
  }
}

}  // namespace

void adamw(Stream& stream, const AdamW& args) {
  const double n = args.state->target_tokens;
  const double norm = std::sqrt(args.grad_square_sum.as<double>()[0]) / n;
  if (n == 0 || !std::isfinite(norm)) return;
  const double clip = args.clip > 0 && norm > args.clip ? args.clip / norm : 1.0;
  std::int64_t blocks = 0;
  for (const AdamWParameter& p : args.parameters) blocks += ceil_div(p.master.numel(), kBlock);
  pool_of(stream).parallel_for(blocks, [&](std::int64_t block, int) {
    std::int64_t first = 0;
    for (const AdamWParameter& p : args.parameters) {
      const std::int64_t here = ceil_div(p.master.numel(), kBlock);
      if (block < first + here) {
        const std::int64_t begin = (block - first) * kBlock;
        const std::int64_t count = std::min(kBlock, p.master.numel() - begin);
        if (p.master.dtype == DType::f64)
          update_block<double>(args, clip / n, p, begin, count);
        else
          update_block<float>(args, clip / n, p, begin, count);
        return;
      }
      first += here;
    }
  });
}

}  // namespace tilefold::cpu
