// Who a thread is: a block is warpgroups of four warps, each a role of its own.
#pragma once

#include <cstdint>

#include "kernels/ptx/barrier.cuh"

namespace tilefold::tile {

constexpr int kWarpgroup = 128;

// Whether one feeding and `consumers` consuming warpgroups can share out the registers that the
// block starts with: as many a thread, in eights, as one block of that many threads can have.
constexpr bool registers_fit(int consumers, int feeder, int consumer) {
  const int threads = (consumers + 1) * kWarpgroup;
  return kWarpgroup * (feeder + consumers * consumer) <= 65536 / threads / 8 * 8 * threads;
}

// A value that is the same in all lanes of a warp, so that the compiler knows it too (the
// instruction leaves it in a uniform register): loop bounds and addresses of matrix operands that
// hang on it stay out of the way of the products.
template <class Integer>
__device__ __forceinline__ Integer uniform(Integer value) {
  return static_cast<Integer>(__reduce_or_sync(0xffffffffu, static_cast<unsigned>(value)));
}

__device__ __forceinline__ int block_warp() { return static_cast<int>(uniform(threadIdx.x / 32)); }
__device__ __forceinline__ int block_warpgroup() {
  return static_cast<int>(uniform(threadIdx.x / kWarpgroup));
}
__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % 32); }
// The same, read where it stands: what hangs on it in a rarely taken branch is not computed ahead
// of a loop, where it would hold registers.
__device__ __forceinline__ int lane_here() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % 32;
}
// The same value to others, a new one to the compiler: what is made of it is not kept from before.
__device__ __forceinline__ std::uint32_t anew(std::uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ int group_thread() { return static_cast<int>(threadIdx.x % kWarpgroup); }

// All threads of one warpgroup; `id` is a named barrier that no other warpgroup uses.
__device__ __forceinline__ void sync_warpgroup(int id) { ptx::named_barrier_sync(id, kWarpgroup); }

}  // namespace tilefold::tile
