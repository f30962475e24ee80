// y = silu(g) u      silu(g) = g sigma(g), sigma(g) = 1 / (1 + exp(-g))
// dg = dy u sigma(g) (1 + g (1 - sigma(g)))      du = dy silu(g)
#include "contract/pointwise.h"
#include "kernels/nn/ops.h"
#include "kernels/nn/rows.cuh"

namespace tilefold::nn {
namespace {

// gate_up: rows [2 ffn], g then u.
template <class T, int V>
__global__ void forward_kernel(const T* gate_up, T* y, std::int64_t rows, std::int64_t ffn,
                               unsigned segments) {
  const RowsPlace at = rows_place(segments, V);
  if (at.c >= ffn) return;
  Packed<T, V> g[kRows], u[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (at.first + r >= rows) break;
    const T* from = gate_up + (at.first + r) * 2 * ffn + at.c;
    g[r].load(from);
    u[r].load(from + ffn);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (at.first + r >= rows) break;
    float out[V];
#pragma unroll
    for (int j = 0; j < V; ++j) out[j] = g[r][j] * sigmoid<T>(g[r][j]) * u[r][j];
    store<T, V>(y + (at.first + r) * ffn + at.c, out);
  }
}

template <class T, int V>
__global__ void backward_kernel(const T* dy, const T* gate_up, T* dgate_up, std::int64_t rows,
                                std::int64_t ffn, unsigned segments) {
  const RowsPlace at = rows_place(segments, V);
  if (at.c >= ffn) return;
  Packed<T, V> g[kRows], u[kRows], d[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (at.first + r >= rows) break;
    const T* from = gate_up + (at.first + r) * 2 * ffn + at.c;
    g[r].load(from);
    u[r].load(from + ffn);
    d[r].load(dy + (at.first + r) * ffn + at.c);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (at.first + r >= rows) break;
    float dg[V], du[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float s = sigmoid<T>(g[r][j]);
      dg[j] = d[r][j] * u[r][j] * s * (1.0f + g[r][j] * (1.0f - s));
      du[j] = d[r][j] * g[r][j] * s;
    }
    T* to = dgate_up + (at.first + r) * 2 * ffn + at.c;
    store<T, V>(to, dg);
    store<T, V>(to + ffn, du);
  }
}

}  // namespace

void swiglu_forward(const Queue& queue, const SwigluForward& args) {
  const std::int64_t rows = args.y.shape[0], ffn = args.y.shape[1];
  for_cuda_dtype("swiglu_forward", args.y.dtype, [&]<class T>(Type<T>) {
    const bool wide = vector_rows<T>(args.gate_up.data, ffn) && vector_rows<T>(args.y.data, ffn);
    const RowsGrid grid = rows_grid(rows, ffn, wide ? kVector<T> : 1);
    tile::launch(wide ? forward_kernel<T, kVector<T>> : forward_kernel<T, 1>,
                 {.blocks = grid.blocks, .threads = grid.threads}, queue.stream,
                 args.gate_up.as<T>(), args.y.as<T>(), rows, ffn, grid.segments);
  });
}

void swiglu_backward(const Queue& queue, const SwigluBackward& args) {
  const std::int64_t rows = args.dy.shape[0], ffn = args.dy.shape[1];
  for_cuda_dtype("swiglu_backward", args.dy.dtype, [&]<class T>(Type<T>) {
    const bool wide = vector_rows<T>(args.gate_up.data, ffn) && vector_rows<T>(args.dy.data, ffn) &&
                      vector_rows<T>(args.dgate_up.data, ffn);
    const RowsGrid grid = rows_grid(rows, ffn, wide ? kVector<T> : 1);
    tile::launch(wide ? backward_kernel<T, kVector<T>> : backward_kernel<T, 1>,
                 {.blocks = grid.blocks, .threads = grid.threads}, queue.stream, args.dy.as<T>(),
                 args.gate_up.as<T>(), args.dgate_up.as<T>(), rows, ffn, grid.segments);
  });
}

}  // namespace tilefold::nn
