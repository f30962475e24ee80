// z = h W^T      loss_t = ln sum_v exp(z_tv) - z_t,target
// dz_t = softmax(z_t) - onehot(target_t)      dh = dz W      dW += dz^T h
//
// A block of tokens makes its logits, turns them into their gradient in place and multiplies by W
// while they are in cache; dW follows over the tokens of the stage.
#include "contract/loss_head.h"

#include <cmath>
#include <limits>

#include "cpu/nn/element.h"
#include "cpu/nn/product.h"
#include "cpu/nn/vector_math.h"
#include "cpu/ops.h"
#include "cpu/stream.h"

namespace tilefold::cpu {
namespace {

template <class A>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] A row_max(std::int64_t vocab,
                                                                                const A* z) {
  A top = z[0];
#pragma omp simd reduction(max : top)
  for (std::int64_t v = 0; v < vocab; ++v) top = top > z[v] ? top : z[v];
  return top;
}

// What lies this far below the top logit has no probability: exp(-64) = 2e-28 is nothing beside the
// terms near 1 of any float32 sum here, and smaller ones would make the products subnormal, which
// is slow. The double oracle keeps all.
template <class A>
constexpr A kNegligible = std::is_same_v<A, float> ? A(-64) : -std::numeric_limits<A>::infinity();

// z = exp(z - top); returns the sum.
template <class A>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] A exp_row(std::int64_t vocab,
                                                                                A top, A* z) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t v = 0; v < vocab; ++v) {
    const A below = z[v] - top;
    z[v] = below < kNegligible<A> ? A(0) : vector_exp(below);
    sum += z[v];
  }
  return sum;
}

template <class A>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void scale_row(
    std::int64_t vocab, A factor, A* z) {
#pragma omp simd
  for (std::int64_t v = 0; v < vocab; ++v) z[v] *= factor;
}

// Losses and predictions of tokens [begin, end); their logits become gradients where wanted.
// logits: of token `begin`, rows [vocab].
template <class A>
void loss_rows(const LossHead& args, std::int64_t begin, std::int64_t end, A* logits) {
  const std::int64_t vocab = args.weight.shape[0];
  for (std::int64_t t = begin; t < end; ++t, logits += vocab) {
    const std::int64_t target = args.targets.as<std::int32_t>()[t];
    if (target < -1 || target >= vocab)
      throw Error(str("loss_head: targets[", t, "] is ", target, "; allowed: -1 to ", vocab - 1));
    const A top = row_max(vocab, logits);
    if (args.predictions) {
      const A* at = std::find(logits, logits + vocab, top);
      args.predictions.as<std::int32_t>()[t] =
          static_cast<std::int32_t>(at == logits + vocab ? 0 : at - logits);
    }
    if (target < 0) {
      args.losses.as<A>()[t] = 0;
      if (args.dhidden) std::fill_n(logits, vocab, A(0));
      continue;
    }
    const A below = top - logits[target];
    const A sum = exp_row(vocab, top, logits);
    args.losses.as<A>()[t] = std::log(sum) + below;
    if (!args.dhidden) continue;
    scale_row(vocab, A(1) / sum, logits);
    logits[target] -= A(1);
  }
}

template <class T>
void run(ThreadPool& pool, const LossHead& args) {
  using A = accumulator_t<T>;
  constexpr bool kStaged = !std::is_same_v<T, A>;
  const std::int64_t tokens = args.hidden.shape[0], width = args.hidden.shape[1];
  const std::int64_t vocab = args.weight.shape[0];
  const LossHeadStage stage(
      {.tokens = tokens, .width = width, .vocab = vocab, .dtype = args.hidden.dtype});
  const auto piece = [&](std::int64_t offset) {
    return reinterpret_cast<A*>(args.workspace.data() + offset);
  };
  A* logits = piece(stage.logits);
  const A* weight =
      operand<T>(pool, vocab, width, {args.weight.as<T>(), width}, piece(stage.weight)).data;
  const std::int64_t block = product_block(stage.tokens);
  for (std::int64_t start = 0; start < tokens; start += stage.tokens) {
    const std::int64_t here = std::min(stage.tokens, tokens - start);
    const A* hidden = operand<T>(pool, here, width, {args.hidden.as<T>() + start * width, width},
                                 piece(stage.hidden))
                          .data;
    for_blocks(pool, here, block, [&](std::int64_t begin, std::int64_t end) {
      A* z = logits + begin * vocab;
      gemm(Trans::no, Trans::yes, end - begin, vocab, width, A(1), hidden + begin * width, width,
           weight, width, A(0), z, vocab);
      loss_rows(args, start + begin, start + end, z);
      if (!args.dhidden) return;
      T* dhidden = args.dhidden.as<T>() + (start + begin) * width;
      A* to;
      if constexpr (kStaged) {
        to = piece(stage.dhidden) + begin * width;
      } else {
        to = dhidden;
      }
      gemm(Trans::no, Trans::no, end - begin, width, vocab, A(1), z, vocab, weight, width, A(0), to,
           width);
      if constexpr (kStaged) {
        narrow<T>(end - begin, width, {to, width}, {dhidden, width});
      }
    });
    if (args.dhidden)
      add_weight_gradient<A>(pool, here, width, vocab, {logits, vocab}, {hidden, width},
                             piece(stage.runs), args.dweight.as<A>());
  }
  if (!args.loss_sum) return;
  double sum = 0;
  for (std::int64_t t = 0; t < tokens; ++t) sum += static_cast<double>(args.losses.as<A>()[t]);
  args.loss_sum.as<double>()[0] += sum;
}

}  // namespace

void loss_head(Stream& stream, const LossHead& args) {
  for_float_dtype(args.hidden.dtype, [&]<class T>(Type<T>) { run<T>(pool_of(stream), args); });
}

}  // namespace tilefold::cpu
