// sum = residual + dropout(branch)
// rms    rstd = 1 / sqrt(mean(sum^2) + eps)               y = sum rstd w
// layer  rstd = 1 / sqrt(mean((sum - mean)^2) + eps)      y = (sum - mean) rstd w + b
// backward, g = dy w, x^ = (sum - mean) rstd (mean = 0 for rms):
//   dsum += rstd (g - [mean(g) for layer] - x^ mean(g x^))      dbranch = dropout'(dsum)
//   dw += sum_t dy x^      db += sum_t dy      block sums in the workspace, added in order
#include <cmath>

#include "contract/norm.h"
#include "cpu/nn/dropout_scale.h"
#include "cpu/nn/element.h"
#include "cpu/ops.h"
#include "cpu/stream.h"

namespace tilefold::cpu {
namespace {

// sum = residual + branch, or + dropout(branch), rounded.
template <class T, class R>
[[gnu::always_inline]] inline void add_row(const ResidualNormForward& args, std::int64_t row,
                                           std::int64_t width, const R* residual, const T* branch,
                                           R* sum) {
  using A = accumulator_t<T>;
  if (args.dropout.p == 0) {
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) store(sum[c], load(residual[c]) + load(branch[c]));
    return;
  }
  A scale[kDropoutChunk];
  for (std::int64_t begin = 0; begin < width; begin += kDropoutChunk) {
    const std::int64_t count = std::min(kDropoutChunk, width - begin);
    dropout_scale(args.dropout, row, width, begin, count, scale);
#pragma omp simd
    for (std::int64_t c = 0; c < count; ++c)
      store(sum[begin + c], load(residual[begin + c]) + load(branch[begin + c]) * scale[c]);
  }
}

template <class T, class R>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void forward_rows(
    const ResidualNormForward& args, std::int64_t begin, std::int64_t end) {
  using A = accumulator_t<T>;
  const std::int64_t width = args.weight.shape[0];
  const bool layer = args.kind == NormKind::layer;
  const T* weight = args.weight.as<T>();
  const T* bias = args.bias ? args.bias.as<T>() : nullptr;
  for (std::int64_t row = begin; row < end; ++row) {
    const R* x = args.residual.as<R>() + row * width;
    if (args.branch) {
      R* sum = args.sum.as<R>() + row * width;
      add_row<T, R>(args, row, width, x, args.branch.as<T>() + row * width, sum);
      x = sum;
    }
    A mean = 0;
    if (layer) {
#pragma omp simd reduction(+ : mean)
      for (std::int64_t c = 0; c < width; ++c) mean += load(x[c]);
      mean /= static_cast<A>(width);
    }
    A square = 0;
#pragma omp simd reduction(+ : square)
    for (std::int64_t c = 0; c < width; ++c) {
      const A centred = load(x[c]) - mean;
      square += centred * centred;
    }
    const A rstd = A(1) / std::sqrt(square / static_cast<A>(width) + static_cast<A>(args.eps));
    T* y = args.y.as<T>() + row * width;
    if (bias != nullptr) {
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c)
        store(y[c], (load(x[c]) - mean) * rstd * load(weight[c]) + load(bias[c]));
    } else {
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c)
        store(y[c], (load(x[c]) - mean) * rstd * load(weight[c]));
    }
    if (layer) args.mean.as<A>()[row] = mean;
    args.rstd.as<A>()[row] = rstd;
  }
}

template <class T, class R>
[[gnu::always_inline]] inline void branch_gradient_row(const ResidualNormBackward& args,
                                                       std::int64_t row, std::int64_t width,
                                                       const R* dsum, T* dbranch) {
  using A = accumulator_t<T>;
  if (args.dropout.p == 0) {
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) store(dbranch[c], load(dsum[c]));
    return;
  }
  A scale[kDropoutChunk];
  for (std::int64_t begin = 0; begin < width; begin += kDropoutChunk) {
    const std::int64_t count = std::min(kDropoutChunk, width - begin);
    dropout_scale(args.dropout, row, width, begin, count, scale);
#pragma omp simd
    for (std::int64_t c = 0; c < count; ++c)
      store(dbranch[begin + c], load(dsum[begin + c]) * scale[c]);
  }
}

// Rows of one block; dw, db: this block's sums [width], zeroed here (db null without a bias).
template <class T, class R>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void backward_rows(
    const ResidualNormBackward& args, std::int64_t begin, std::int64_t end, accumulator_t<T>* dw,
    accumulator_t<T>* db) {
  using A = accumulator_t<T>;
  const std::int64_t width = args.weight.shape[0];
  const bool layer = args.kind == NormKind::layer;
  const T* weight = args.weight.as<T>();
  std::fill_n(dw, width, A(0));
  if (db != nullptr) std::fill_n(db, width, A(0));
  for (std::int64_t row = begin; row < end; ++row) {
    const T* dy = args.dy.as<T>() + row * width;
    const R* sum = args.sum.as<R>() + row * width;
    R* dsum = args.dsum.as<R>() + row * width;
    const A mean = layer ? args.mean.as<A>()[row] : A(0);
    const A rstd = args.rstd.as<A>()[row];
    A g_sum = 0, gx_sum = 0;
#pragma omp simd reduction(+ : g_sum, gx_sum)
    for (std::int64_t c = 0; c < width; ++c) {
      const A d = load(dy[c]);
      const A x = (load(sum[c]) - mean) * rstd;
      const A g = d * load(weight[c]);
      dw[c] += d * x;
      g_sum += g;
      gx_sum += g * x;
    }
    const A g_mean = layer ? g_sum / static_cast<A>(width) : A(0);
    const A gx_mean = gx_sum / static_cast<A>(width);
    if (db != nullptr) {
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) db[c] += load(dy[c]);
    }
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) {
      const A x = (load(sum[c]) - mean) * rstd;
      const A g = load(dy[c]) * load(weight[c]);
      store(dsum[c], load(dsum[c]) + rstd * (g - g_mean - x * gx_mean));
    }
    if (args.dbranch)
      branch_gradient_row<T, R>(args, row, width, dsum, args.dbranch.as<T>() + row * width);
  }
}

// total[width] += the blocks' sums [blocks, width], in order.
template <class A>
void add_block_sums(std::int64_t blocks, std::int64_t width, const A* sums, A* total) {
  for (std::int64_t c = 0; c < width; ++c) {
    A sum = 0;
    for (std::int64_t b = 0; b < blocks; ++b) sum += sums[b * width + c];
    total[c] += sum;
  }
}

template <class T, class R>
void backward(ThreadPool& pool, const ResidualNormBackward& args) {
  using A = accumulator_t<T>;
  const std::int64_t tokens = args.dy.shape[0], width = args.weight.shape[0];
  if (tokens == 0) return;
  const std::int64_t block = norm_backward_block(tokens);
  const std::int64_t blocks = ceil_div(tokens, block);
  A* dw = reinterpret_cast<A*>(args.workspace.data());
  A* db = args.dbias ? dw + align_workspace(blocks * width * static_cast<std::int64_t>(sizeof(A))) /
                                static_cast<std::int64_t>(sizeof(A))
                     : nullptr;
  for_blocks(pool, tokens, block, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t at = begin / block * width;
    backward_rows<T, R>(args, begin, end, dw + at, db != nullptr ? db + at : nullptr);
  });
  add_block_sums(blocks, width, dw, args.dweight.as<A>());
  if (db != nullptr) add_block_sums(blocks, width, db, args.dbias.as<A>());
}

}  // namespace

void residual_norm_forward(Stream& stream, const ResidualNormForward& args) {
  const std::int64_t tokens = args.y.shape[0], width = args.weight.shape[0];
  for_float_dtype(args.y.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(args.residual.dtype, [&]<class R>(Type<R>) {
      for_blocks(
          pool_of(stream), tokens, rows_per_block(width),
          [&](std::int64_t begin, std::int64_t end) { forward_rows<T, R>(args, begin, end); });
    });
  });
}

void residual_norm_backward(Stream& stream, const ResidualNormBackward& args) {
  for_float_dtype(args.dy.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(args.sum.dtype,
                       [&]<class R>(Type<R>) { backward<T, R>(pool_of(stream), args); });
  });
}

}  // namespace tilefold::cpu
