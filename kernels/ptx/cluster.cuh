// Blocks of a cluster: their barrier, and stores into each other's shared memory. One instruction,
// one function. PTX ISA 9.0, "barrier.cluster", "mapa", "st". From compute capability 9.0 on.
#pragma once

#include <cstdint>

#include "kernels/ptx/barrier.cuh"

namespace tilefold::ptx {

// This block's place in its cluster, and how many blocks that has.
__device__ __forceinline__ int cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ __forceinline__ int cluster_blocks() {
  std::uint32_t blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return static_cast<int>(blocks);
}

// Arrives without ordering memory: to learn that all blocks have begun.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// Arrives; what this thread wrote is seen by those that wait.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Waits for all threads of the cluster that have not ended.
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address in block `rank`'s shared memory of what lies at `pointer` in this block's.
__device__ __forceinline__ std::uint32_t cluster_address(const void* pointer, int rank) {
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(pointer)), "r"(rank));
  return address;
}

__device__ __forceinline__ void store_cluster(std::uint32_t address, float x) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
__device__ __forceinline__ void store_cluster(std::uint32_t address, float x, float y) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y)
               : "memory");
}

}  // namespace tilefold::ptx
