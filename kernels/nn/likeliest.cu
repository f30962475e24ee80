// token = the first of the largest logits, or -1 - i of the first NaN: the largest key of
// (value in an order of integers, NaN above all; then the smaller id), so that no order of
// comparing changes the answer. One block: 200 kB of logits come from the L2 cache.
#include "contract/token.h"
#include "kernels/nn/element.cuh"
#include "kernels/nn/ops.h"
#include "kernels/ptx/grid_order.cuh"
#include "kernels/tile/launch.cuh"

namespace tilefold::nn {
namespace {

constexpr int kThreads = 1024, kAhead = 8;

__device__ __forceinline__ std::uint64_t key_of(float x, std::int64_t id) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);  // -0 is 0
  std::uint32_t order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  if (x != x) order = 0xffffffffu;
  return std::uint64_t{order} << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}

__device__ __forceinline__ std::uint64_t larger(std::uint64_t a, std::uint64_t b) {
  return a > b ? a : b;
}

__device__ __forceinline__ std::uint64_t warp_largest(std::uint64_t key) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    key = larger(key, __shfl_xor_sync(0xffffffffu, key, step));
  return key;
}

__global__ void __launch_bounds__(kThreads)
    likeliest_kernel(const float* logits, std::int64_t usable, std::int32_t* token) {
  __shared__ std::uint64_t shared[kThreads / kWarp];
  ptx::wait_for_last();
  std::uint64_t best = 0;
  for (std::int64_t first = threadIdx.x; first < usable; first += kAhead * kThreads) {
    float x[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      x[i] = first + i * kThreads < usable ? logits[first + i * kThreads] : 0.0f;
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + i * kThreads < usable) best = larger(best, key_of(x[i], first + i * kThreads));
  }
  best = warp_largest(best);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = best;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  best = warp_largest(shared[threadIdx.x]);
  const auto id = static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(best));
  if (threadIdx.x == 0) *token = best >> 32 == 0xffffffffu ? -1 - id : id;
}

}  // namespace

void likeliest(const Queue& queue, const Likeliest& args) {
  require(args.logits.dtype == DType::f32, "likeliest: dtype ", name_of(args.logits.dtype),
          " has no CUDA kernel; allowed: f32 (device cpu takes f64)");
  tile::launch(likeliest_kernel, {.blocks = 1, .threads = kThreads, .early = true}, queue.stream,
               args.logits.as<float>(), args.usable, args.token.as<std::int32_t>());
}

}  // namespace tilefold::nn
