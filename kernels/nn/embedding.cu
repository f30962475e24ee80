// x_t = dropout(E[token_t] + P[position_t])
// dE[v] += sum_{t: token_t = v} dropout'(dx_t)      dP[i] += sum_{t: position_t = i} dropout'(dx_t)
//
// Backward gives each block a few rows of the table and a run of columns: it reads all ids, keeps
// the tokens of its rows in their order, and adds them up; a row with many tokens is shared out
// over groups of the block's threads, whose sums are added in order. No two blocks write one
// element, every sum has one order, and nothing is sorted in memory.
#include <algorithm>

#include "contract/embedding.h"
#include "contract/workspace.h"
#include "kernels/nn/dropout.cuh"
#include "kernels/nn/element.cuh"
#include "kernels/nn/ops.h"
#include "kernels/tile/launch.cuh"

namespace tilefold::nn {
namespace {

template <class T, class R>
struct ForwardParams {
  const std::int32_t *tokens, *positions;  // [tokens]
  const T *table, *places;                 // [vocab, width], [context, width] or null
  R* x;                                    // [tokens, width]
  std::int64_t count, width, vocab, context;
  unsigned threads;  // of a token
  Dropout dropout;
};

constexpr int kForwardThreads = 256;

template <class T, class R, int V>
__global__ void __launch_bounds__(kForwardThreads) forward_kernel(const ForwardParams<T, R> p) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * (kForwardThreads / p.threads) +
                         threadIdx.x / p.threads;
  if (t >= p.count) return;
  const std::int64_t token = p.tokens[t], place = p.places != nullptr ? p.positions[t] : 0;
  const bool inside =
      token >= 0 && token < p.vocab && place >= 0 && (p.places == nullptr || place < p.context);
  for (std::int64_t c = threadIdx.x % p.threads * V; c < p.width; c += p.threads * V) {
    float x[V], more[V];
    if (!inside) {
#pragma unroll
      for (int j = 0; j < V; ++j) x[j] = __int_as_float(0x7fc00000);
    } else {
      load<T, V>(p.table + token * p.width + c, x);
      if (p.places != nullptr) {
        load<T, V>(p.places + place * p.width + c, more);
#pragma unroll
        for (int j = 0; j < V; ++j) x[j] += more[j];
      }
      if (p.dropout.p > 0) {
        dropout_scale<V>(p.dropout, t, p.width, c, more);
#pragma unroll
        for (int j = 0; j < V; ++j) x[j] *= more[j];
      }
    }
    store<R, V>(p.x + t * p.width + c, x);
  }
}

template <class T, class R, int V>
void forward(const Queue& queue, const EmbeddingForward& args) {
  ForwardParams<T, R> p{
      .tokens = args.tokens.as<std::int32_t>(),
      .positions = args.position_table ? args.positions.as<std::int32_t>() : nullptr,
      .table = args.table.as<T>(),
      .places = args.position_table ? args.position_table.as<T>() : nullptr,
      .x = args.x.as<R>(),
      .count = args.x.shape[0],
      .width = args.x.shape[1],
      .vocab = args.table.shape[0],
      .context = args.position_table ? args.position_table.shape[0] : 0,
      .threads = kWarp,
      .dropout = args.dropout};
  while (p.threads < kForwardThreads && p.threads * V < p.width) p.threads *= 2;
  tile::launch(
      forward_kernel<T, R, V>,
      {.blocks = ceil_div(p.count, kForwardThreads / p.threads), .threads = kForwardThreads},
      queue.stream, p);
}

// A block's ids are kept this many at a time, and it has this many rows at most.
constexpr int kKept = 2048, kMostRows = 64, kThreads = 512, kMostLanes = 128;
constexpr int kAhead = 2;     // ids of a thread under way at a time
constexpr int kTogether = 4;  // tokens of a row whose gradients are under way at a time
constexpr int kLight = 16;    // a row with so many tokens is one group's

template <class R>
struct BackwardParams {
  const std::int32_t* ids;  // [tokens] rows of the table
  const R* dx;              // [tokens, width]
  float* dtable;            // [rows, width]
  std::int64_t count, width, rows;
  int rows_of_block;
  int lanes, groups;  // of a block's threads: a group's lanes have V columns each of one token
  unsigned segments;  // blocks side by side over the columns
  Dropout dropout;
};

struct Kept {
  std::int32_t token[kKept], sorted[kKept];  // in token order; row by row, each in token order
  std::uint8_t row[kKept];
  int begin[kMostRows + 1];
  int count, warp_count[kThreads / kWarp];
};

// Appends this round's matches in the order of the threads.
__device__ void append(Kept& kept, bool mine, std::int64_t token, int row) {
  const unsigned votes = __ballot_sync(0xffffffffu, mine);
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (lane == 0) kept.warp_count[warp] = __popc(votes);
  __syncthreads();
  int at = kept.count + __popc(votes & ((1u << lane) - 1u));
  int all = 0;
#pragma unroll
  for (unsigned w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) at += kept.warp_count[w];
    all += kept.warp_count[w];
  }
  if (mine) {
    kept.token[at] = static_cast<std::int32_t>(token);
    kept.row[at] = static_cast<std::uint8_t>(row);
  }
  __syncthreads();
  if (threadIdx.x == 0) kept.count += all;
  __syncthreads();
}

// Orders what was kept by row: a thread a row.
__device__ void order_by_row(Kept& kept, int rows) {
  const int mine = static_cast<int>(threadIdx.x);
  if (rows == 1) {
    for (int i = mine; i < kept.count; i += kThreads) kept.sorted[i] = kept.token[i];
    if (mine == 0) kept.begin[0] = 0, kept.begin[1] = kept.count;
    __syncthreads();
    return;
  }
  if (mine < rows) {
    int count = 0;
    for (int i = 0; i < kept.count; ++i) count += kept.row[i] == mine ? 1 : 0;
    kept.begin[mine + 1] = count;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    kept.begin[0] = 0;
    for (int r = 0; r < rows; ++r) kept.begin[r + 1] += kept.begin[r];
  }
  __syncthreads();
  if (mine < rows && kept.begin[mine] < kept.begin[mine + 1]) {
    int at = kept.begin[mine];
    for (int i = 0; i < kept.count; ++i)
      if (kept.row[i] == mine) kept.sorted[at++] = kept.token[i];
  }
  __syncthreads();
}

// sum += dropout'(dx_t)
template <class R, int V>
__device__ __forceinline__ void add_row(const BackwardParams<R>& p, const Packed<R, V>& dx,
                                        std::int64_t t, std::int64_t c, float (&sum)[V]) {
  if (p.dropout.p == 0) {
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] += dx[j];
    return;
  }
  float scale[V];
  dropout_scale<V>(p.dropout, t, p.width, c, scale);
#pragma unroll
  for (int j = 0; j < V; ++j) sum[j] += dx[j] * scale[j];
}

// sum += tokens first, first + step, ... of those sorted, below `end`.
template <class R, int V>
__device__ __forceinline__ void add_tokens(const BackwardParams<R>& p, const Kept& kept, int first,
                                           int end, int step, std::int64_t c, float (&sum)[V]) {
  for (int i = first; i < end; i += kTogether * step) {
    Packed<R, V> d[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (i + k * step < end)
        d[k].load(p.dx + std::int64_t{kept.sorted[i + k * step]} * p.width + c);
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (i + k * step < end) add_row<R, V>(p, d[k], kept.sorted[i + k * step], c, sum);
  }
}

// A row with few tokens is one group's; a row with many is shared out over all groups, whose sums
// are then added in order. sums: [groups][lanes * V].
template <class R, int V>
__device__ void add_kept(const BackwardParams<R>& p, Kept& kept, float* sums, std::int64_t first,
                         int rows, std::int64_t segment) {
  order_by_row(kept, rows);
  const int lane = static_cast<int>(threadIdx.x) % p.lanes;
  const int group = static_cast<int>(threadIdx.x) / p.lanes;
  const std::int64_t start = segment * p.lanes * V, c = start + lane * V;
  if (group < p.groups && c < p.width)
    for (int r = group; r < rows; r += p.groups) {
      const int begin = kept.begin[r], end = kept.begin[r + 1];
      if (begin == end || end - begin > kLight) continue;
      float* to = p.dtable + (first + r) * p.width + c;
      float sum[V];
      load<float, V>(to, sum);
      add_tokens<R, V>(p, kept, begin, end, 1, c, sum);
      store<float, V>(to, sum);
    }
  for (int r = 0; r < rows; ++r) {
    const int begin = kept.begin[r], end = kept.begin[r + 1];
    if (end - begin <= kLight) continue;  // the same on all threads
    if (group < p.groups && c < p.width) {
      float sum[V] = {};
      add_tokens<R, V>(p, kept, begin + group, end, p.groups, c, sum);
#pragma unroll
      for (int j = 0; j < V; ++j) sums[(group * p.lanes + lane) * V + j] = sum[j];
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < p.lanes * V; i += kThreads) {
      if (start + i >= p.width) break;
      float sum = 0;
#pragma unroll 8
      for (int g = 0; g < p.groups; ++g) sum += sums[g * p.lanes * V + i];
      p.dtable[(first + r) * p.width + start + i] += sum;
    }
    __syncthreads();
  }
  __syncthreads();
  if (threadIdx.x == 0) kept.count = 0;
  __syncthreads();
}

template <class R, int V>
__global__ void __launch_bounds__(kThreads, 2) backward_kernel(const BackwardParams<R> p) {
  __shared__ Kept kept;
  __shared__ float sums[kThreads * V];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x / p.segments) * p.rows_of_block;
  const int rows =
      static_cast<int>(first + p.rows_of_block < p.rows ? p.rows_of_block : p.rows - first);
  const std::int64_t segment = blockIdx.x % p.segments;
  if (threadIdx.x == 0) kept.count = 0;
  __syncthreads();
  for (std::int64_t start = 0; start < p.count; start += kAhead * kThreads) {
    std::int64_t row[kAhead];
    bool any = false;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t t = start + i * kThreads + threadIdx.x;
      row[i] = t < p.count ? p.ids[t] - first : -1;
      any = any || (row[i] >= 0 && row[i] < rows);
    }
    if (__syncthreads_or(any ? 1 : 0)) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        append(kept, row[i] >= 0 && row[i] < rows, start + i * kThreads + threadIdx.x,
               static_cast<int>(row[i]));
    }
    const bool last = start + kAhead * kThreads >= p.count;
    if (kept.count > (last ? 0 : kKept - kAhead * kThreads))
      add_kept<R, V>(p, kept, sums, first, rows, segment);
  }
}

template <class R, int V>
void add_rows(const Queue& queue, const EmbeddingBackward& args, const ConstTensor& ids,
              const Tensor& dtable) {
  BackwardParams<R> p{.ids = ids.as<std::int32_t>(),
                      .dx = args.dx.as<R>(),
                      .dtable = dtable.as<float>(),
                      .count = args.dx.shape[0],
                      .width = args.dx.shape[1],
                      .rows = dtable.shape[0],
                      .rows_of_block = 1,
                      .lanes = 0,
                      .groups = 0,
                      .segments = 1,
                      .dropout = args.dropout};
  // Every block reads all ids: few rows, each with many tokens, become more blocks by their columns
  // (8 lanes read a line of 128 bytes), many rows fewer.
  const std::int64_t vectors = ceil_div(p.width, V), processors = queue.device.processors;
  std::int64_t lanes = std::min<std::int64_t>(vectors, kMostLanes);
  while (lanes > 8 && p.rows * ceil_div(vectors, lanes) < 4 * processors)
    lanes = std::max<std::int64_t>(8, ceil_div(lanes, 2));
  p.lanes = static_cast<int>(lanes);
  p.groups = static_cast<int>(kThreads / lanes);
  p.segments = static_cast<unsigned>(ceil_div(vectors, lanes));
  p.rows_of_block = static_cast<int>(
      std::clamp<std::int64_t>(p.rows * p.segments / (8 * processors), 1, kMostRows));
  tile::launch(backward_kernel<R, V>,
               {.blocks = ceil_div(p.rows, p.rows_of_block) * p.segments, .threads = kThreads},
               queue.stream, p);
}

template <class R, int V>
void backward(const Queue& queue, const EmbeddingBackward& args) {
  add_rows<R, V>(queue, args, args.tokens, args.dtable);
  if (args.dposition_table) add_rows<R, V>(queue, args, args.positions, args.dposition_table);
}

}  // namespace

void embedding_forward(const Queue& queue, const EmbeddingForward& args) {
  for_cuda_dtype("embedding_forward", args.table.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(args.x.dtype, [&]<class R>(Type<R>) {
      const std::int64_t width = args.x.shape[1];
      const bool wide = vector_rows<T>(args.table.data, width) &&
                        vector_rows<T>(args.position_table.data, width) &&
                        vector_rows<R>(args.x.data, width);
      wide ? forward<T, R, kVector<T>>(queue, args) : forward<T, R, 1>(queue, args);
    });
  });
}

void embedding_backward(const Queue& queue, const EmbeddingBackward& args) {
  for_cuda_dtype("embedding_backward", args.dx.dtype, [&]<class R>(Type<R>) {
    const std::int64_t width = args.dx.shape[1];
    const bool wide = vector_rows<R>(args.dx.data, width) &&
                      vector_rows<float>(args.dtable.data, width) &&
                      vector_rows<float>(args.dposition_table.data, width);
    wide ? backward<R, kVector<R>>(queue, args) : backward<R, 1>(queue, args);
  });
}

}  // namespace tilefold::nn
