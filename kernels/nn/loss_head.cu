// z = h W^T      loss_t = ln sum_v exp(z_tv) - z_t,target
// dz_t = softmax(z_t) - onehot(target_t)      dh = dz W      dW += dz^T h
//
// A number of tokens at a time (contract/loss_head.h): their logits, in place their gradient, its
// two products. A block takes a token; it goes over the logits twice, the second time in shared
// memory as far as they fit, so that memory is read once and written once. A small vocabulary's
// token is one warp's, whose registers keep the logits.
#include <algorithm>

#include "contract/loss_head.h"
#include "contract/workspace.h"
#include "kernels/nn/element.cuh"
#include "kernels/nn/matrix.h"
#include "kernels/nn/ops.h"
#include "kernels/tile/launch.cuh"

namespace tilefold::nn {
namespace {

constexpr int kThreads = 512;
// Two blocks of this share a multiprocessor of an A100 or H200 with what they need besides.
constexpr std::int64_t kSharedBytes = 80 << 10;

template <class L>
struct LossParams {
  L* logits;                    // [tokens, row]; in: z, out: dz where `gradients`
  const std::int32_t* targets;  // [tokens]
  float* losses;                // [tokens]
  std::int32_t* predictions;    // [tokens], or null
  std::int64_t row;
  int vocab, cached;  // cached: vectors of a row that fit shared memory
  bool gradients;
};

// exp(x), x <= 0.
template <class L>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (std::is_same_v<L, float>) {
    return expf(x);
  } else {
    return __expf(x);
  }
}

// The streaming softmax's state: the largest logit so far, where it is first, and the sum of
// exponentials relative to it.
struct Running {
  float top, sum;
  int at;
};

template <class L>
__device__ __forceinline__ Running merged(const Running& a, const Running& b) {
  const bool first = a.top > b.top || (a.top == b.top && a.at < b.at);
  const Running &high = first ? a : b, &low = first ? b : a;
  Running out = high;
  if (low.top > -INFINITY) out.sum += low.sum * exponential<L>(low.top - high.top);
  if (isnan(a.sum) || isnan(b.sum)) out.sum = NAN;
  return out;
}

// Over the warp, the same on every lane.
template <class L>
__device__ __forceinline__ Running merged_over_warp(Running mine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Running other = {__shfl_xor_sync(0xffffffffu, mine.top, step),
                           __shfl_xor_sync(0xffffffffu, mine.sum, step),
                           __shfl_xor_sync(0xffffffffu, mine.at, step)};
    mine = merged<L>(mine, other);
  }
  return mine;
}

// Over the block, the same on every thread. shared: [warps].
template <class L>
__device__ Running merged_over_block(Running mine, Running* shared) {
  mine = merged_over_warp<L>(mine);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mine;
  __syncthreads();
  mine = shared[0];
  for (unsigned w = 1; w < kThreads / kWarp; ++w) mine = merged<L>(mine, shared[w]);
  return mine;
}

template <class L, int V>
__device__ __forceinline__ void take(Running& state, const Packed<L, V>& z, int c, int vocab) {
  float top = state.top;
#pragma unroll
  for (int j = 0; j < V; ++j)
    if (c + j < vocab && z[j] > top) {
      top = z[j];
      state.at = c + j;
    }
  if (top > state.top) {
    state.sum *= exponential<L>(state.top - top);
    state.top = top;
  }
#pragma unroll
  for (int j = 0; j < V; ++j)
    if (c + j < vocab) state.sum += exponential<L>(z[j] - top);
}

// A token's target, and its logit.
struct Goal {
  std::int64_t target;  // -1: none
  float z;              // NaN where the target is none of the vocabulary
  bool inside;
};

template <class L>
__device__ __forceinline__ Goal goal_of(const LossParams<L>& p, std::int64_t t, const L* z) {
  const std::int64_t target = p.targets[t];
  const bool inside = target < p.vocab;
  return {target, target >= 0 && inside ? widened(z[target]) : NAN, inside};
}

template <class L>
__device__ __forceinline__ void write_loss(const LossParams<L>& p, std::int64_t t, const Goal& goal,
                                           const Running& state) {
  p.losses[t] = goal.target == -1 ? 0.0f : logf(state.sum) + (state.top - goal.z);
  if (p.predictions != nullptr) p.predictions[t] = state.at;
}

// dz of columns [c, c + V); the padding behind the vocabulary becomes 0.
template <class L, int V>
__device__ __forceinline__ void write_gradient(L* z, const Packed<L, V>& kept, int c, int vocab,
                                               const Goal& goal, const Running& state) {
  const float factor = goal.target == -1 ? 0.0f : goal.inside ? 1.0f / state.sum : NAN;
  float dz[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const int v = c + j;
    dz[j] = goal.target == -1 || v >= vocab ? 0.0f : exponential<L>(kept[j] - state.top) * factor;
    if (v == goal.target) dz[j] -= 1.0f;
  }
  store<L, V>(z + c, dz);
}

template <class L, int V>
__global__ void __launch_bounds__(kThreads, 2) loss_kernel(const LossParams<L> p) {
  extern __shared__ uint4 cache[];
  __shared__ Running shared[kThreads / kWarp];
  auto* packed = reinterpret_cast<Packed<L, V>*>(cache);
  const std::int64_t t = blockIdx.x;
  L* z = p.logits + t * p.row;
  const int vectors = (p.vocab + V - 1) / V;
  const Goal goal = goal_of(p, t, z);

  Running state = {-INFINITY, 0, 0};
  constexpr int kAhead = 4;  // vectors of a thread under way at a time
  for (int first = static_cast<int>(threadIdx.x); first < vectors; first += kAhead * kThreads) {
    Packed<L, V> ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + i * kThreads < vectors) ahead[i].load(z + std::int64_t{first + i * kThreads} * V);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = first + i * kThreads;
      if (at >= vectors) continue;
      if (at < p.cached) packed[at] = ahead[i];
      take<L, V>(state, ahead[i], at * V, p.vocab);
    }
  }
  state = merged_over_block<L>(state, shared);
  if (threadIdx.x == 0) write_loss(p, t, goal, state);
  if (!p.gradients) return;
  for (int at = static_cast<int>(threadIdx.x); at < vectors; at += kThreads) {
    Packed<L, V> kept;
    if (at < p.cached) {
      kept = packed[at];
    } else {
      kept.load(z + std::int64_t{at} * V);
    }
    write_gradient<L, V>(z, kept, at * V, p.vocab, goal, state);
  }
}

constexpr int kWarps = 8;          // tokens of a block where a token is one warp's
constexpr int kVectorsOfLane = 4;  // up to 1024 logits of 16 bits, 512 of float32

template <class L, int V>
__global__ void __launch_bounds__(kWarps* kWarp)
    small_loss_kernel(const LossParams<L> p, std::int64_t tokens) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (t >= tokens) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  L* z = p.logits + t * p.row;
  const Goal goal = goal_of(p, t, z);
  const auto column = [&](int i) { return (i * static_cast<int>(kWarp) + lane) * V; };
  Packed<L, V> packed[kVectorsOfLane];
#pragma unroll
  for (int i = 0; i < kVectorsOfLane; ++i)
    if (column(i) < p.vocab) packed[i].load(z + column(i));
  Running state = {-INFINITY, 0, 0};
#pragma unroll
  for (int i = 0; i < kVectorsOfLane; ++i)
    if (column(i) < p.vocab) take<L, V>(state, packed[i], column(i), p.vocab);
  state = merged_over_warp<L>(state);
  if (lane == 0) write_loss(p, t, goal, state);
  if (!p.gradients) return;
#pragma unroll
  for (int i = 0; i < kVectorsOfLane; ++i)
    if (column(i) < p.vocab) write_gradient<L, V>(z, packed[i], column(i), p.vocab, goal, state);
}

// total[0] += the losses' sum in float64: each thread every 1024th, then a fixed tree.
__global__ void __launch_bounds__(1024)
    loss_sum_kernel(const float* losses, std::int64_t tokens, double* total) {
  __shared__ double shared[32];
  double sum = 0;
  for (std::int64_t t = threadIdx.x; t < tokens; t += 1024) sum += static_cast<double>(losses[t]);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < 32; ++w) sum += shared[w];
  *total += sum;
}

template <class L>
void losses(const Queue& queue, const LossHead& args, std::int64_t start, std::int64_t tokens,
            std::int64_t row, L* logits) {
  const std::int64_t vocab = args.weight.shape[0];
  const std::int64_t vectors = ceil_div(vocab, kVector<L>);
  LossParams<L> p{
      .logits = logits,
      .targets = args.targets.as<std::int32_t>() + start,
      .losses = args.losses.as<float>() + start,
      .predictions = args.predictions ? args.predictions.as<std::int32_t>() + start : nullptr,
      .row = row,
      .vocab = static_cast<int>(vocab),
      .cached = 0,
      .gradients = static_cast<bool>(args.dhidden)};
  if (vectors <= kVectorsOfLane * std::int64_t{kWarp}) {
    tile::launch(small_loss_kernel<L, kVector<L>>,
                 {.blocks = ceil_div(tokens, kWarps), .threads = kWarps * static_cast<int>(kWarp)},
                 queue.stream, p, tokens);
    return;
  }
  if (p.gradients) p.cached = static_cast<int>(std::min(vectors, kSharedBytes / 16));
  tile::launch(loss_kernel<L, kVector<L>>,
               {.blocks = tokens,
                .threads = kThreads,
                .shared_bytes = static_cast<std::size_t>(p.cached) * 16},
               queue.stream, p);
}

// T: the model's dtype; L: of the logits, T where they become gradients, else float.
template <class T, class L>
void run(const Queue& queue, MatrixLibrary& library, const LossHead& args) {
  const std::int64_t tokens = args.hidden.shape[0], width = args.hidden.shape[1];
  const std::int64_t vocab = args.weight.shape[0];
  const CudaLossHeadStage stage(
      {.tokens = tokens, .width = width, .vocab = vocab, .dtype = args.hidden.dtype},
      static_cast<bool>(args.dhidden), queue.device);
  L* logits = reinterpret_cast<L*>(args.workspace.data() + stage.logits);
  const auto matrix = args.workspace.subspan(static_cast<std::size_t>(stage.matrix));
  for (std::int64_t start = 0; start < tokens; start += stage.tokens) {
    const std::int64_t here = std::min(stage.tokens, tokens - start);
    const T* hidden = args.hidden.as<T>() + start * width;
    library.multiply({.m = here,
                      .n = vocab,
                      .k = width,
                      .a = {hidden, width},
                      .b = {args.weight.data, width, true},
                      .c = logits,
                      .c_row = stage.row,
                      .dtype = dtype_of<T>(),
                      .c_dtype = dtype_of<L>()},
                     matrix, queue.stream);
    losses<L>(queue, args, start, here, stage.row, logits);
    if (!args.dhidden) continue;
    library.multiply({.m = here,
                      .n = width,
                      .k = vocab,
                      .a = {logits, stage.row},
                      .b = {args.weight.data, width},
                      .c = args.dhidden.as<T>() + start * width,
                      .c_row = width,
                      .dtype = dtype_of<T>(),
                      .c_dtype = dtype_of<T>()},
                     matrix, queue.stream);
    library.multiply({.m = vocab,
                      .n = width,
                      .k = here,
                      .a = {logits, stage.row, true},
                      .b = {hidden, width},
                      .c = args.dweight.data,
                      .c_row = width,
                      .dtype = dtype_of<T>(),
                      .accumulate = true},
                     matrix, queue.stream);
  }
  if (args.loss_sum)
    tile::launch(loss_sum_kernel, {.blocks = 1, .threads = 1024}, queue.stream,
                 static_cast<const float*>(args.losses.as<float>()), tokens,
                 args.loss_sum.as<double>());
}

}  // namespace

void loss_head(const Queue& queue, MatrixLibrary& library, const LossHead& args) {
  for_cuda_dtype("loss_head", args.hidden.dtype, [&]<class T>(Type<T>) {
    args.dhidden ? run<T, T>(queue, library, args) : run<T, float>(queue, library, args);
  });
}

}  // namespace tilefold::nn
