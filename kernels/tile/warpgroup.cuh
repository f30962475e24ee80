// Who a thread is: a block is warpgroups of four warps, each a role of its own.
#pragma once

#include "kernels/ptx/barrier.cuh"

namespace tilefold::tile {

constexpr int kWarpgroup = 128;

// The same in all lanes of a warp, and known to be so by the compiler.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

__device__ __forceinline__ int block_warp() {
  return uniform(static_cast<int>(threadIdx.x) / 32);
}
__device__ __forceinline__ int block_warpgroup() {
  return uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
}
__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int group_thread() {
  return static_cast<int>(threadIdx.x) % kWarpgroup;
}

// All threads of one warpgroup; `id` is a named barrier that no other warpgroup uses.
__device__ __forceinline__ void sync_warpgroup(int id) { ptx::named_barrier_sync(id, kWarpgroup); }

}  // namespace tilefold::tile
