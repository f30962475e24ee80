// y = epilogue(x W^T + b)
// dx = dy W (times gelu'(x_pre))      dW += dy^T x      db += sum_t dy
//   gelu(z) = z P(Z < z)      gelu'(z) = P(Z < z) + z exp(-z^2 / 2) / sqrt(2 pi)
//
// The products, the bias and the additions into dW are cuBLASLt's. Its GELU is the tanh
// approximation, another function than the contract's, so that GELU is a pass of its own over the
// stored z.
#include "contract/linear.h"
#include "kernels/nn/matrix.h"
#include "kernels/nn/ops.h"
#include "kernels/nn/rows.cuh"
#include "kernels/nn/vector_product.h"

namespace tilefold::nn {
namespace {

template <class T>
struct Matrix {
  T* data;
  std::int64_t row;  // elements from one row to the next
  __device__ T* at(std::int64_t r, std::int64_t c) const { return data + r * row + c; }
};

template <class T, class Void>
auto matrix(const BasicTensor<Void>& t) {
  using Element = std::remove_pointer_t<decltype(t.template as<T>())>;
  return Matrix<Element>{t.template as<T>(), t.strides[0]};
}

// P(Z < z) and the density exp(-z^2 / 2) / sqrt(2 pi).
struct Normal {
  float cumulative, density;
};

// Beside 16-bit numbers the tail is exp(-z^2 / 2) times a polynomial in 1 / (1 + |z| / 4), fitted
// to a relative error of 2.4e-5: a library function's instructions would take twice the time of the
// bytes.
template <class T>
__device__ __forceinline__ Normal normal(float z) {
  constexpr float kDensity = 0.39894228f;  // 1 / sqrt(2 pi)
  if constexpr (std::is_same_v<T, float>) {
    return {0.5f * erfcf(z * -0.70710678f), kDensity * expf(-0.5f * z * z)};
  } else {
    const float bell = ptx::exp2(z * z * -0.72134752f);  // log2 e / 2
    const float t = ptx::reciprocal(fmaf(0.25f, fabsf(z), 1.0f));
    float tail = fmaf(t, 0.24586018f, -0.11425204f);
    tail = fmaf(t, tail, 0.18940324f);
    tail = fmaf(t, tail, 0.07722654f);
    tail = fmaf(t, tail, 0.10177386f) * t * bell;
    return {z > 0 ? 1.0f - tail : tail, kDensity * bell};
  }
}

// y = gelu(pre)
template <class T, class Y, int V>
__global__ void gelu_kernel(Matrix<const T> pre, Matrix<Y> y, std::int64_t rows, std::int64_t width,
                            unsigned segments) {
  const RowsPlace at = rows_place(segments, V);
  if (at.c >= width) return;
  Packed<T, V> z[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    if (at.first + r < rows) z[r].load(pre.at(at.first + r, at.c));
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (at.first + r >= rows) break;
    float out[V];
#pragma unroll
    for (int j = 0; j < V; ++j) out[j] = z[r][j] * normal<T>(z[r][j]).cumulative;
    store<Y, V>(y.at(at.first + r, at.c), out);
  }
}

// dx *= gelu'(pre)
template <class T, int V>
__global__ void gelu_gradient_kernel(Matrix<const T> pre, Matrix<T> dx, std::int64_t rows,
                                     std::int64_t width, unsigned segments) {
  const RowsPlace at = rows_place(segments, V);
  if (at.c >= width) return;
  Packed<T, V> z[kRows], d[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (at.first + r >= rows) break;
    z[r].load(pre.at(at.first + r, at.c));
    d[r].load(dx.at(at.first + r, at.c));
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (at.first + r >= rows) break;
    float out[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const Normal at_z = normal<T>(z[r][j]);
      out[j] = d[r][j] * (at_z.cumulative + z[r][j] * at_z.density);
    }
    store<T, V>(dx.at(at.first + r, at.c), out);
  }
}

// y += b, where the product could not add it: a float32 y beside a 16-bit b.
template <class T>
__global__ void add_bias_kernel(const T* bias, Matrix<float> y, std::int64_t rows,
                                std::int64_t width, unsigned segments) {
  const RowsPlace at = rows_place(segments, 1);
  if (at.c >= width) return;
  const float b = widened(bias[at.c]);
  for (int r = 0; r < kRows && at.first + r < rows; ++r) *y.at(at.first + r, at.c) += b;
}

// sums[run, out]: of a run of tokens each. A block: one run, 32 columns; 8 threads a column, whose
// sums are added in order.
template <class T>
__global__ void __launch_bounds__(256)
    column_sums_kernel(Matrix<const T> dy, std::int64_t tokens, std::int64_t out, std::int64_t run,
                       unsigned segments, float* sums) {
  __shared__ float part[8][33];
  const std::int64_t index = blockIdx.x / segments, begin = index * run;
  const std::int64_t end = begin + run < tokens ? begin + run : tokens;
  const unsigned column = threadIdx.x % 32, mine = threadIdx.x / 32;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x % segments) * 32 + column;
  float sum = 0;
  if (c < out)
    for (std::int64_t t = begin + mine; t < end; t += 8) sum += widened(*dy.at(t, c));
  part[mine][column] = sum;
  __syncthreads();
  if (mine != 0 || c >= out) return;
  for (unsigned i = 1; i < 8; ++i) sum += part[i][column];
  sums[index * out + c] = sum;
}

// db += the runs' sums, in order.
__global__ void add_column_sums_kernel(const float* sums, std::int64_t runs, std::int64_t out,
                                       float* dbias) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= out) return;
  float sum = 0;
#pragma unroll 8
  for (std::int64_t run = 0; run < runs; ++run) sum += sums[run * out + c];
  dbias[c] += sum;
}

template <class T>
void add_bias_gradient(const Queue& queue, const LinearBackward& args, float* sums) {
  const std::int64_t tokens = args.dy.shape[0], out = args.dy.shape[1];
  const std::int64_t run = ceil_div(tokens, kBiasRuns), runs = ceil_div(tokens, run);
  const std::int64_t segments = ceil_div(out, 32);
  tile::launch(column_sums_kernel<T>, {.blocks = runs * segments, .threads = 256}, queue.stream,
               matrix<T>(args.dy), tokens, out, run, static_cast<unsigned>(segments), sums);
  tile::launch(add_column_sums_kernel, {.blocks = ceil_div(out, 128), .threads = 128}, queue.stream,
               sums, runs, out, args.dbias.as<float>());
}

// z = x W^T + b
template <class T>
void product(const Queue& queue, MatrixLibrary& library, const LinearForward& args,
             const Tensor& z) {
  const std::int64_t tokens = args.x.shape[0], in = args.x.shape[1], out = args.weight.shape[0];
  const bool fused_bias = args.bias && z.dtype == args.bias.dtype;
  library.multiply({.m = tokens,
                    .n = out,
                    .k = in,
                    .a = {args.x.data, args.x.strides[0]},
                    .b = {args.weight.data, in, true},
                    .c = z.data,
                    .c_row = z.strides[0],
                    .dtype = args.x.dtype,
                    .c_dtype = z.dtype,
                    .bias = fused_bias ? args.bias.data : nullptr},
                   args.workspace, queue.stream);
  if (args.bias && !fused_bias) {
    const RowsGrid grid = rows_grid(tokens, out, 1);
    tile::launch(add_bias_kernel<T>, {.blocks = grid.blocks, .threads = grid.threads}, queue.stream,
                 args.bias.as<T>(), matrix<float>(z), tokens, out, grid.segments);
  }
}

template <class T, class Y>
void forward(const Queue& queue, MatrixLibrary& library, const LinearForward& args) {
  const std::int64_t tokens = args.x.shape[0], out = args.weight.shape[0];
  const bool gelu = args.epilogue == Epilogue::gelu;
  const Tensor& z = gelu ? args.pre : args.y;
  takes_vector_product(args) ? vector_product(queue, args, z) : product<T>(queue, library, args, z);
  if (!gelu) return;
  const bool wide = vector_rows<T>(args.pre.data, args.pre.strides[0]) &&
                    vector_rows<Y>(args.y.data, args.y.strides[0]) && out % kVector<T> == 0;
  const RowsGrid grid = rows_grid(tokens, out, wide ? kVector<T> : 1);
  tile::launch(wide ? gelu_kernel<T, Y, kVector<T>> : gelu_kernel<T, Y, 1>,
               {.blocks = grid.blocks, .threads = grid.threads}, queue.stream,
               matrix<T>(ConstTensor(args.pre)), matrix<Y>(args.y), tokens, out, grid.segments);
}

template <class T>
void backward(const Queue& queue, MatrixLibrary& library, const LinearBackward& args) {
  const std::int64_t tokens = args.x.shape[0], in = args.x.shape[1], out = args.weight.shape[0];
  const CudaLinearStage stage({.tokens = tokens, .in = in, .out = out, .dtype = args.x.dtype},
                              queue.device);
  library.multiply({.m = out,
                    .n = in,
                    .k = tokens,
                    .a = {args.dy.data, args.dy.strides[0], true},
                    .b = {args.x.data, args.x.strides[0]},
                    .c = args.dweight.data,
                    .c_row = in,
                    .dtype = args.x.dtype,
                    .accumulate = true},
                   args.workspace, queue.stream);
  if (args.dbias)
    add_bias_gradient<T>(queue, args, reinterpret_cast<float*>(args.workspace.data() + stage.bias));
  if (!args.dx) return;
  library.multiply({.m = tokens,
                    .n = in,
                    .k = out,
                    .a = {args.dy.data, args.dy.strides[0]},
                    .b = {args.weight.data, in},
                    .c = args.dx.data,
                    .c_row = args.dx.strides[0],
                    .dtype = args.x.dtype,
                    .c_dtype = args.dx.dtype},
                   args.workspace, queue.stream);
  if (!args.x_pre) return;
  const bool wide = vector_rows<T>(args.x_pre.data, args.x_pre.strides[0]) &&
                    vector_rows<T>(args.dx.data, args.dx.strides[0]) && in % kVector<T> == 0;
  const RowsGrid grid = rows_grid(tokens, in, wide ? kVector<T> : 1);
  tile::launch(wide ? gelu_gradient_kernel<T, kVector<T>> : gelu_gradient_kernel<T, 1>,
               {.blocks = grid.blocks, .threads = grid.threads}, queue.stream,
               matrix<T>(args.x_pre), matrix<T>(args.dx), tokens, in, grid.segments);
}

}  // namespace

void linear_forward(const Queue& queue, MatrixLibrary& library, const LinearForward& args) {
  for_cuda_dtype("linear_forward", args.x.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(args.y.dtype,
                       [&]<class Y>(Type<Y>) { forward<T, Y>(queue, library, args); });
  });
}

void linear_backward(const Queue& queue, MatrixLibrary& library, const LinearBackward& args) {
  for_cuda_dtype("linear_backward", args.x.dtype,
                 [&]<class T>(Type<T>) { backward<T>(queue, library, args); });
}

}  // namespace tilefold::nn
