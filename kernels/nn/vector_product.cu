// y = W x (+ b) for one token: a product bound by the bytes of W, which is read once. A warp takes
// a row of W; its lanes' sums are added in a fixed order.
#include "contract/workspace.h"
#include "kernels/nn/element.cuh"
#include "kernels/nn/vector_product.h"
#include "kernels/tile/launch.cuh"

namespace tilefold::nn {
namespace {

constexpr int kWarps = 4;  // of a block: 2304 rows are 576 blocks, four a multiprocessor
constexpr int kAhead = 4;  // vectors of a lane under way at a time

template <class T, class Y>
struct Params {
  const T *x, *weight, *bias;  // [in], [out, in], [out] or null
  Y* y;                        // [out]
  std::int64_t in, out;
};

template <class T, class Y>
__global__ void __launch_bounds__(kWarps* kWarp) vector_kernel(const Params<T, Y> p) {
  constexpr int V = kVector<T>;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= p.out) return;
  const std::int64_t lane = threadIdx.x % kWarp, step = std::int64_t{kWarp} * V;
  const T* w = p.weight + row * p.in;
  float sum = 0;
  for (std::int64_t first = lane * V; first < p.in; first += kAhead * step) {
    Packed<T, V> a[kAhead], b[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i * step >= p.in) continue;
      a[i].load(w + first + i * step);
      b[i].load(p.x + first + i * step);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i * step >= p.in) continue;
#pragma unroll
      for (int j = 0; j < V; ++j) sum = fmaf(a[i][j], b[i][j], sum);
    }
  }
  sum = warp_sum(sum);
  if (lane != 0) return;
  if (p.bias != nullptr) sum += widened(p.bias[row]);
  p.y[row] = narrowed<Y>(sum);
}

}  // namespace

bool takes_vector_product(const LinearForward& args) {
  bool takes = args.x.shape[0] == 1;
  const std::int64_t size = size_of(args.x.dtype), row = args.x.shape[1] * size;
  for (const void* data : {args.x.data, args.weight.data})
    takes = takes && reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row % 16 == 0;
  return takes;
}

void vector_product(const Queue& queue, const LinearForward& args, const Tensor& z) {
  for_cuda_dtype("linear_forward", args.x.dtype, [&]<class T>(Type<T>) {
    for_wider_dtype<T>(z.dtype, [&]<class Y>(Type<Y>) {
      const Params<T, Y> p{.x = args.x.as<T>(),
                           .weight = args.weight.as<T>(),
                           .bias = args.bias ? args.bias.as<T>() : nullptr,
                           .y = z.as<Y>(),
                           .in = args.x.shape[1],
                           .out = args.weight.shape[0]};
      tile::launch(vector_kernel<T, Y>,
                   {.blocks = ceil_div(p.out, kWarps), .threads = kWarps * static_cast<int>(kWarp)},
                   queue.stream, p);
    });
  });
}

}  // namespace tilefold::nn
