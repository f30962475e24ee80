// sum = residual + dropout(branch)
// rms    rstd = 1 / sqrt(mean(sum^2) + eps)               y = sum rstd w
// layer  rstd = 1 / sqrt(mean((sum - mean)^2) + eps)      y = (sum - mean) rstd w + b
// backward, g = dy w, x^ = (sum - mean) rstd (mean = 0 for rms):
//   dsum += rstd (g - [mean(g) for layer] - x^ mean(g x^))      dbranch = dropout'(dsum)
//   dw += sum_t dy x^      db += sum_t dy      sums of runs of tokens in the workspace, added in
//   order
//
// A row stays in the registers of its threads, a warp for most widths: memory is read once and
// written once.
#include "contract/norm.h"
#include "contract/workspace.h"
#include "kernels/nn/dropout.cuh"
#include "kernels/nn/element.cuh"
#include "kernels/nn/ops.h"
#include "kernels/tile/launch.cuh"

namespace tilefold::nn {
namespace {

constexpr int kThreads = 256;

// How rows lie in a block: one in up to 1024 threads, or side by side in kThreads; narrow ones
// leave backward registers for a second block beside the first.
enum class Rows { narrow, usual, wide };
constexpr int most_threads(Rows rows) { return rows == Rows::wide ? 1024 : kThreads; }

// Vectors that a thread keeps: 24 columns of 16 bits let one warp have a row of 768. Single
// elements where rows are not aligned.
template <int V, Rows kRows = Rows::usual>
constexpr int kVectors = V == 1                  ? 8
                         : kRows == Rows::narrow ? 2
                                                 : 3;

// Threads of a row, and rows side by side in a block.
struct RowShape {
  unsigned threads, rows;
};

template <int V>
RowShape row_shape(const char* op, std::int64_t width) {
  const std::int64_t each = std::int64_t{kVectors<V>} * V;
  const std::int64_t threads = ceil_div(width, each * kWarp) * kWarp;
  require(threads <= 1024, op, ": width is ", width, "; allowed on a GPU: up to ", 1024 * each,
          V == 1 ? " where rows are not multiples of 16 bytes" : "");
  return {static_cast<unsigned>(threads),
          static_cast<unsigned>(threads < kThreads ? kThreads / threads : 1)};
}

template <class T, class R>
struct ForwardParams {
  const R* residual;  // [tokens, width]
  const T *branch, *weight,
      *bias;           // [tokens, width], [width], [width]; branch and bias may be null
  R* sum;              // [tokens, width]
  T* y;                // [tokens, width]
  float *mean, *rstd;  // [tokens]
  std::int64_t tokens;
  int width;
  RowShape shape;
  float eps;
  bool layer;
  Dropout dropout;
};

// A row as memory has it.
template <class T, class R, int V>
struct FetchedRow {
  Packed<R, V> residual[kVectors<V>];
  Packed<T, V> branch[kVectors<V>];
};

// Blocks stay, and fetch their next row while they work on one. kMost: threads of a block, of which
// two share a multiprocessor up to 256.
template <class T, class R, int V, int kMost>
__global__ void __launch_bounds__(kMost, kMost <= kThreads ? 2 : 1)
    forward_kernel(const ForwardParams<T, R> p) {
  __shared__ float2 shared[32];
  const unsigned lane = threadIdx.x % p.shape.threads, group = threadIdx.x / p.shape.threads;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * p.shape.rows;
  const auto column = [&](int i) { return static_cast<int>(i * p.shape.threads + lane) * V; };
  const auto live = [&](std::int64_t row, int i) { return row < p.tokens && column(i) < p.width; };
  FetchedRow<T, R, V> fetched;
  const auto fetch = [&](std::int64_t row) {
#pragma unroll
    for (int i = 0; i < kVectors<V>; ++i) {
      if (!live(row, i)) continue;
      fetched.residual[i].load(p.residual + row * p.width + column(i));
      if (p.branch != nullptr) fetched.branch[i].load(p.branch + row * p.width + column(i));
    }
  };

  std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * p.shape.rows;
  fetch(first + group);
  for (; first < p.tokens; first += step) {
    const std::int64_t row = first + group, start = row * p.width;
    float x[kVectors<V>][V] = {};
    float total = 0;
#pragma unroll
    for (int i = 0; i < kVectors<V>; ++i) {
      if (!live(row, i)) continue;
#pragma unroll
      for (int j = 0; j < V; ++j) x[i][j] = fetched.residual[i][j];
      if (p.branch != nullptr) {
        float scale[V];
        if (p.dropout.p > 0) dropout_scale<V>(p.dropout, row, p.width, column(i), scale);
#pragma unroll
        for (int j = 0; j < V; ++j)
          x[i][j] = rounded<R>(
              x[i][j] + (p.dropout.p > 0 ? fetched.branch[i][j] * scale[j] : fetched.branch[i][j]));
        store<R, V>(p.sum + start + column(i), x[i]);
      }
#pragma unroll
      for (int j = 0; j < V; ++j) total += x[i][j];
    }
    fetch(row + step);
    float mean = 0;
    if (p.layer)
      mean = row_sums({total, 0}, p.shape.threads, shared).x / static_cast<float>(p.width);
    float square = 0;
#pragma unroll
    for (int i = 0; i < kVectors<V>; ++i) {
      if (!live(row, i)) continue;
#pragma unroll
      for (int j = 0; j < V; ++j) square += (x[i][j] - mean) * (x[i][j] - mean);
    }
    square = row_sums({square, 0}, p.shape.threads, shared).x;
    const float rstd = 1.0f / sqrtf(square / static_cast<float>(p.width) + p.eps);
#pragma unroll
    for (int i = 0; i < kVectors<V>; ++i) {
      if (!live(row, i)) continue;
      Packed<T, V> w, b;
      w.load(p.weight + column(i));
      if (p.bias != nullptr) b.load(p.bias + column(i));
#pragma unroll
      for (int j = 0; j < V; ++j) {
        x[i][j] = (x[i][j] - mean) * rstd * w[j];
        if (p.bias != nullptr) x[i][j] += b[j];
      }
      store<T, V>(p.y + start + column(i), x[i]);
    }
    if (lane != 0 || row >= p.tokens) continue;
    if (p.layer) p.mean[row] = mean;
    p.rstd[row] = rstd;
  }
}

template <class T, class R>
struct BackwardParams {
  const T *dy, *weight;      // [tokens, width], [width]
  const R* sum;              // [tokens, width]
  const float *mean, *rstd;  // [tokens]
  R* dsum;                   // [tokens, width]
  T* dbranch;                // [tokens, width], or null
  float *dw, *db;            // [runs, width] sums of a run each; db null without a bias
  std::int64_t tokens, run;  // run: tokens of a block
  int width;
  RowShape shape;
  bool layer;
  Dropout dropout;
};

// Sums of a block's rows [rows side by side][width] into one, in order: to[width].
template <int V, int kCount>
__device__ void add_rows(const float (&sums)[kCount][V], const RowShape& shape, int width,
                         float* shared, float* to) {
  const unsigned lane = threadIdx.x % shape.threads, group = threadIdx.x / shape.threads;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int c = static_cast<int>(i * shape.threads + lane) * V;
    if (c >= width) continue;
#pragma unroll
    for (int j = 0; j < V; ++j) (shape.rows == 1 ? to : shared + group * width)[c + j] = sums[i][j];
  }
  if (shape.rows == 1) return;
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < width; c += static_cast<int>(blockDim.x)) {
    float sum = 0;
    for (unsigned g = 0; g < shape.rows; ++g)
      sum += shared[g * static_cast<unsigned>(width) + static_cast<unsigned>(c)];
    to[c] = sum;
  }
}

// Whether two blocks share a multiprocessor's registers.
template <class T, class R, bool kBias, Rows kRows>
constexpr bool kPaired = kRows == Rows::narrow ||
                         (kRows == Rows::usual && !kBias && sizeof(R) == sizeof(T));

template <class T, class R, int V, bool kBias, Rows kRows>
__global__ void __launch_bounds__(most_threads(kRows), kPaired<T, R, kBias, kRows> ? 2 : 1)
    backward_kernel(const BackwardParams<T, R> p) {
  __shared__ float2 shared[32];
  extern __shared__ float rows_shared[];  // [rows side by side][width]
  constexpr int kCount = kVectors<V, kRows>;
  const unsigned lane = threadIdx.x % p.shape.threads;
  const std::int64_t begin = blockIdx.x * p.run;
  const std::int64_t end = begin + p.run < p.tokens ? begin + p.run : p.tokens;
  const auto column = [&](int i) { return static_cast<int>(i * p.shape.threads + lane) * V; };

  float dw[kCount][V] = {};
  float db[kBias ? kCount : 1][V] = {};
  for (std::int64_t first = begin; first < end; first += p.shape.rows) {
    const std::int64_t row = first + threadIdx.x / p.shape.threads;
    const std::int64_t start = row * p.width;
    const auto live = [&](int i) { return row < end && column(i) < p.width; };
    // Packed, and widened where they are used, twice: 128 registers hold a row and dw's sums.
    Packed<R, V> x[kCount], to[kCount];
    Packed<T, V> dy[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!live(i)) continue;
      x[i].load(p.sum + start + column(i));
      dy[i].load(p.dy + start + column(i));
      to[i].load(p.dsum + start + column(i));
    }
    const float mean = p.layer && row < end ? p.mean[row] : 0.0f;
    const float rstd = row < end ? p.rstd[row] : 0.0f;
    float2 sums = {0, 0};  // of g, of g x^
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!live(i)) continue;
      Packed<T, V> w;
      w.load(p.weight + column(i));
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float normed = (x[i][j] - mean) * rstd, g = dy[i][j] * w[j];
        dw[i][j] += dy[i][j] * normed;
        if constexpr (kBias) db[i][j] += dy[i][j];
        sums.x += g;
        sums.y += g * normed;
      }
    }
    sums = row_sums(sums, p.shape.threads, shared);
    const float g_mean = p.layer ? sums.x / static_cast<float>(p.width) : 0.0f;
    const float gx_mean = sums.y / static_cast<float>(p.width);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!live(i)) continue;
      Packed<T, V> w;
      w.load(p.weight + column(i));
      float out[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float normed = (x[i][j] - mean) * rstd, g = dy[i][j] * w[j];
        out[j] = rounded<R>(to[i][j] + rstd * (g - g_mean - normed * gx_mean));
      }
      store<R, V>(p.dsum + start + column(i), out);
      if (p.dbranch == nullptr) continue;
      if (p.dropout.p > 0) {
        float scale[V];
        dropout_scale<V>(p.dropout, row, p.width, column(i), scale);
#pragma unroll
        for (int j = 0; j < V; ++j) out[j] *= scale[j];
      }
      store<T, V>(p.dbranch + start + column(i), out);
    }
  }
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * p.width;
  add_rows<V>(dw, p.shape, p.width, rows_shared, p.dw + at);
  if constexpr (kBias) add_rows<V>(db, p.shape, p.width, rows_shared, p.db + at);
}

// total[width] += the runs' sums [runs, width]: 32 columns a block, 32 threads a column that take
// every 32nd run each, then those sums in order.
__global__ void __launch_bounds__(1024)
    add_runs_kernel(const float* sums, std::int64_t runs, int width, float* total) {
  __shared__ float part[32][33];
  const int c = static_cast<int>(blockIdx.x * 32 + threadIdx.x % 32);
  const unsigned mine = threadIdx.x / 32;
  float sum = 0;
  if (c < width)
    for (std::int64_t run = mine; run < runs; run += 32) sum += sums[run * width + c];
  part[mine][threadIdx.x % 32] = sum;
  __syncthreads();
  if (mine != 0 || c >= width) return;
  for (unsigned i = 1; i < 32; ++i) sum += part[i][threadIdx.x % 32];
  total[c] += sum;
}

template <class T, class R, int V>
void forward(const Queue& queue, const ResidualNormForward& args) {
  ForwardParams<T, R> p{.residual = args.residual.as<R>(),
                        .branch = args.branch ? args.branch.as<T>() : nullptr,
                        .weight = args.weight.as<T>(),
                        .bias = args.bias ? args.bias.as<T>() : nullptr,
                        .sum = args.sum ? args.sum.as<R>() : nullptr,
                        .y = args.y.as<T>(),
                        .mean = args.mean ? args.mean.as<float>() : nullptr,
                        .rstd = args.rstd.as<float>(),
                        .tokens = args.y.shape[0],
                        .width = static_cast<int>(args.y.shape[1]),
                        .shape = row_shape<V>("residual_norm_forward", args.y.shape[1]),
                        .eps = args.eps,
                        .layer = args.kind == NormKind::layer,
                        .dropout = args.dropout};
  const std::int64_t blocks = ceil_div(p.tokens, p.shape.rows);
  const std::int64_t at_a_time = 2 * queue.device.processors;
  const tile::Grid grid{.blocks = blocks < at_a_time ? blocks : at_a_time,
                        .threads = static_cast<int>(p.shape.threads * p.shape.rows)};
  tile::launch(
      grid.threads > kThreads ? forward_kernel<T, R, V, 1024> : forward_kernel<T, R, V, kThreads>,
      grid, queue.stream, p);
}

template <class T, class R, int V>
void backward(const Queue& queue, const ResidualNormBackward& args) {
  const std::int64_t tokens = args.dy.shape[0], width = args.dy.shape[1];
  const std::int64_t most = cuda_norm_backward_runs(tokens, queue.device.processors);
  const std::int64_t run = ceil_div(tokens, most), runs = ceil_div(tokens, run);
  auto* dw = reinterpret_cast<float*>(args.workspace.data());
  float* db = args.dbias ? dw + align_workspace(runs * width * 4) / 4 : nullptr;
  const BackwardParams<T, R> p{.dy = args.dy.as<T>(),
                               .weight = args.weight.as<T>(),
                               .sum = args.sum.as<R>(),
                               .mean = args.mean ? args.mean.as<float>() : nullptr,
                               .rstd = args.rstd.as<float>(),
                               .dsum = args.dsum.as<R>(),
                               .dbranch = args.dbranch ? args.dbranch.as<T>() : nullptr,
                               .dw = dw,
                               .db = db,
                               .tokens = tokens,
                               .run = run,
                               .width = static_cast<int>(width),
                               .shape = row_shape<V>("residual_norm_backward", width),
                               .layer = args.kind == NormKind::layer,
                               .dropout = args.dropout};
  const int threads = static_cast<int>(p.shape.threads * p.shape.rows);
  const std::size_t shared =
      p.shape.rows > 1 ? p.shape.rows * static_cast<std::size_t>(width) * 4 : 0;
  const tile::Grid grid{.blocks = runs, .threads = threads, .shared_bytes = shared};
  const auto launch = [&]<Rows kRows>() {
    tile::launch(db != nullptr ? backward_kernel<T, R, V, true, kRows>
                               : backward_kernel<T, R, V, false, kRows>,
                 grid, queue.stream, p);
  };
  if (threads > kThreads)
    launch.template operator()<Rows::wide>();
  else if (V > 1 && width <= kVectors<V, Rows::narrow> * V * std::int64_t{kWarp})
    launch.template operator()<V == 1 ? Rows::usual : Rows::narrow>();
  else
    launch.template operator()<Rows::usual>();
  const tile::Grid columns{.blocks = ceil_div(width, 32), .threads = 1024};
  tile::launch(add_runs_kernel, columns, queue.stream, dw, runs, p.width, args.dweight.as<float>());
  if (db != nullptr)
    tile::launch(add_runs_kernel, columns, queue.stream, db, runs, p.width, args.dbias.as<float>());
}

}  // namespace

void residual_norm_forward(const Queue& queue, const ResidualNormForward& args) {
  for_cuda_dtype("residual_norm_forward", args.y.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(args.residual.dtype, [&]<class R>(Type<R>) {
      const std::int64_t width = args.y.shape[1];
      bool wide = true;
      for (const void* t : {args.residual.data, static_cast<const void*>(args.sum.data)})
        wide = wide && vector_rows<R>(t, width);
      for (const void* t : {args.branch.data, args.weight.data, args.bias.data,
                            static_cast<const void*>(args.y.data)})
        wide = wide && vector_rows<T>(t, width);
      wide ? forward<T, R, kVector<T>>(queue, args) : forward<T, R, 1>(queue, args);
    });
  });
}

void residual_norm_backward(const Queue& queue, const ResidualNormBackward& args) {
  for_cuda_dtype("residual_norm_backward", args.dy.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(args.sum.dtype, [&]<class R>(Type<R>) {
      const std::int64_t width = args.dy.shape[1];
      bool wide = true;
      for (const void* t : {args.sum.data, static_cast<const void*>(args.dsum.data)})
        wide = wide && vector_rows<R>(t, width);
      for (const void* t :
           {args.dy.data, args.weight.data, static_cast<const void*>(args.dbranch.data)})
        wide = wide && vector_rows<T>(t, width);
      wide ? backward<T, R, kVector<T>>(queue, args) : backward<T, R, 1>(queue, args);
    });
  });
}

}  // namespace tilefold::nn
