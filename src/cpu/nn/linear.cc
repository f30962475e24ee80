// y = epilogue(x W^T + b)
// dx = dy W (times gelu'(x_pre))      dW += dy^T x      db += sum_t dy
//
// A block of tokens is one BLAS call and its epilogue while the block is in cache. 16-bit operands
// are widened into the workspace, a fixed number of tokens at a time, and the products run there.
#include "contract/linear.h"

#include <span>

#include "cpu/nn/element.h"
#include "cpu/nn/product.h"
#include "cpu/nn/vector_math.h"
#include "cpu/ops.h"
#include "cpu/stream.h"

namespace tilefold::cpu {
namespace {

template <class T, class Void>
auto matrix(const BasicTensor<Void>& t) {
  return Matrix<std::remove_pointer_t<decltype(t.template as<T>())>>{t.template as<T>(),
                                                                     t.strides[0]};
}

LinearProblem problem_of(const ConstTensor& x, const ConstTensor& weight) {
  return {.tokens = x.shape[0], .in = x.shape[1], .out = weight.shape[0], .dtype = x.dtype};
}

template <class A>
A* piece(std::span<std::byte> workspace, std::int64_t offset) {
  return reinterpret_cast<A*>(workspace.data() + offset);
}

// z += b
template <class T, class A>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void add_bias(
    std::int64_t rows, std::int64_t out, const T* bias, Matrix<A> z) {
  for (std::int64_t row = 0; row < rows; ++row) {
    A* at = z.data + row * z.ld;
#pragma omp simd
    for (std::int64_t c = 0; c < out; ++c) at[c] += load(bias[c]);
  }
}

// y = gelu(pre): of the stored z, since that is what backward reads.
template <class T, class Y>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void gelu_rows(
    std::int64_t rows, std::int64_t width, Matrix<T> pre, Matrix<Y> y) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* from = pre.data + row * pre.ld;
    Y* to = y.data + row * y.ld;
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) store(to[c], gelu(load(from[c])));
  }
}

// dx = z gelu'(x_pre)
template <class T, class A>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void gelu_gradient_rows(
    std::int64_t rows, std::int64_t width, Matrix<const A> z, Matrix<const T> x_pre, Matrix<T> dx) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const A* from = z.data + row * z.ld;
    const T* pre = x_pre.data + row * x_pre.ld;
    T* to = dx.data + row * dx.ld;
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) store(to[c], from[c] * gelu_slope(load(pre[c])));
  }
}

// Sums over tokens, added up in runs so that no float32 chain is long.
constexpr std::int64_t kBiasColumns = 64, kBiasRun = 128;

template <class A>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] void add_column_sums(
    std::int64_t tokens, std::int64_t columns, Matrix<const A> dy, A* sums) {
  A run[kBiasColumns];
  for (std::int64_t begin = 0; begin < tokens; begin += kBiasRun) {
    const std::int64_t end = std::min(tokens, begin + kBiasRun);
    for (std::int64_t c = 0; c < columns; ++c) run[c] = 0;
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t c = 0; c < columns; ++c) run[c] += dy.data[t * dy.ld + c];
    for (std::int64_t c = 0; c < columns; ++c) sums[c] += run[c];
  }
}

template <class A>
void add_bias_gradient(ThreadPool& pool, std::int64_t tokens, std::int64_t out, Matrix<const A> dy,
                       A* dbias) {
  for_blocks(pool, out, kBiasColumns, [&](std::int64_t begin, std::int64_t end) {
    add_column_sums(tokens, end - begin, {dy.data + begin, dy.ld}, dbias + begin);
  });
}

template <class T, class Y>
void forward(ThreadPool& pool, const LinearForward& args) {
  using A = accumulator_t<T>;
  constexpr bool kStaged = !std::is_same_v<T, A>;
  const LinearProblem p = problem_of(args.x, args.weight);
  const LinearStage stage(p);
  const Matrix<const T> x = matrix<T>(args.x);
  const Matrix<Y> y = matrix<Y>(args.y);
  const Matrix<T> pre = args.pre ? matrix<T>(args.pre) : Matrix<T>{};
  const T* bias = args.bias ? args.bias.as<T>() : nullptr;
  const A* weight = operand<T>(pool, p.out, p.in, {args.weight.as<T>(), p.in},
                               piece<A>(args.workspace, stage.weight))
                        .data;
  const std::int64_t chunk = stage.tokens;
  const std::int64_t block = product_block(p.tokens);
  for (std::int64_t start = 0; start < p.tokens; start += chunk) {
    const std::int64_t tokens = std::min(chunk, p.tokens - start);
    const Matrix<const A> from =
        operand<T>(pool, tokens, p.in, x.rows_from(start), piece<A>(args.workspace, stage.x));
    for_blocks(pool, tokens, block, [&](std::int64_t begin, std::int64_t end) {
      Matrix<A> z;  // made where it stays, or staged to be rounded
      if constexpr (!kStaged) {
        z = pre.data != nullptr ? pre.rows_from(start + begin) : y.rows_from(start + begin);
      } else {
        z = {piece<A>(args.workspace, stage.y) + begin * p.out, p.out};
        if constexpr (std::is_same_v<Y, A>) {
          if (pre.data == nullptr) z = y.rows_from(start + begin);
        }
      }
      const std::int64_t rows = end - begin;
      const Matrix<const A> here = from.rows_from(begin);
      gemm(Trans::no, Trans::yes, rows, p.out, p.in, A(1), here.data, here.ld, weight, p.in, A(0),
           z.data, z.ld);
      if (bias != nullptr) add_bias(rows, p.out, bias, z);
      if (pre.data != nullptr) {
        const Matrix<T> kept = pre.rows_from(start + begin);
        if constexpr (kStaged) narrow<T>(rows, p.out, {z.data, z.ld}, kept);
        gelu_rows(rows, p.out, kept, y.rows_from(start + begin));
      } else if constexpr (!std::is_same_v<Y, A>) {
        narrow<Y>(rows, p.out, {z.data, z.ld}, y.rows_from(start + begin));
      }
    });
  }
}

template <class T>
void backward(ThreadPool& pool, const LinearBackward& args) {
  using A = accumulator_t<T>;
  constexpr bool kStaged = !std::is_same_v<T, A>;
  const LinearProblem p = problem_of(args.x, args.weight);
  const LinearStage stage(p);
  const Matrix<const T> x = matrix<T>(args.x), dy = matrix<T>(args.dy);
  const Matrix<const T> x_pre = args.x_pre ? matrix<T>(args.x_pre) : Matrix<const T>{};
  const Matrix<T> dx = args.dx ? matrix<T>(args.dx) : Matrix<T>{};
  const A* weight = nullptr;
  if (args.dx)
    weight = operand<T>(pool, p.out, p.in, {args.weight.as<T>(), p.in},
                        piece<A>(args.workspace, stage.weight))
                 .data;
  const std::int64_t chunk = stage.tokens;
  const std::int64_t block = product_block(p.tokens);
  for (std::int64_t start = 0; start < p.tokens; start += chunk) {
    const std::int64_t tokens = std::min(chunk, p.tokens - start);
    const Matrix<const A> wide_x =
        operand<T>(pool, tokens, p.in, x.rows_from(start), piece<A>(args.workspace, stage.x));
    const Matrix<const A> wide_dy =
        operand<T>(pool, tokens, p.out, dy.rows_from(start), piece<A>(args.workspace, stage.y));
    add_weight_gradient<A>(pool, tokens, p.in, p.out, wide_dy, wide_x,
                           piece<A>(args.workspace, stage.runs), args.dweight.as<A>());
    if (args.dbias) add_bias_gradient<A>(pool, tokens, p.out, wide_dy, args.dbias.as<A>());
    if (!args.dx) continue;
    for_blocks(pool, tokens, block, [&](std::int64_t begin, std::int64_t end) {
      Matrix<A> z;  // x was used above; its place is free
      if constexpr (kStaged) {
        z = {piece<A>(args.workspace, stage.x) + begin * p.in, p.in};
      } else {
        z = dx.rows_from(begin);
      }
      const std::int64_t rows = end - begin;
      const Matrix<const A> here = wide_dy.rows_from(begin);
      gemm(Trans::no, Trans::no, rows, p.in, p.out, A(1), here.data, here.ld, weight, p.in, A(0),
           z.data, z.ld);
      if (x_pre.data != nullptr)
        gelu_gradient_rows<T, A>(rows, p.in, {z.data, z.ld}, x_pre.rows_from(start + begin),
                                 dx.rows_from(start + begin));
      else if constexpr (kStaged)
        narrow<T>(rows, p.in, {z.data, z.ld}, dx.rows_from(start + begin));
    });
  }
}

}  // namespace

void linear_forward(Stream& stream, const LinearForward& args) {
  for_float_dtype(args.x.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(args.y.dtype,
                       [&]<class Y>(Type<Y>) { forward<T, Y>(pool_of(stream), args); });
  });
}

void linear_backward(Stream& stream, const LinearBackward& args) {
  for_float_dtype(args.x.dtype, [&]<class T>(Type<T>) { backward<T>(pool_of(stream), args); });
}

}  // namespace tilefold::cpu
