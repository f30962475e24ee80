// The bulk copy engine: tiles of up to four-dimensional tensors and plain runs of bytes, between
// global and shared memory. Issued by one thread. PTX ISA 9.0, "cp.async.bulk".
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/ptx/barrier.cuh"

namespace tilefold::ptx {

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(map)) : "memory");
}

// The box at coordinates (x, y, z, w) into shared memory; its bytes complete on `barrier`. What
// lies outside the tensor arrives as zero, and counts.
__device__ __forceinline__ void copy_tensor_to_shared(void* shared, const CUtensorMap* map, int x,
                                                      int y, int z, int w, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(x), "r"(y),
      "r"(z), "r"(w)
      : "memory");
}

// The box from shared memory; what lies outside the tensor is not written.
__device__ __forceinline__ void copy_tensor_to_global(const CUtensorMap* map, const void* shared,
                                                      int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          reinterpret_cast<std::uint64_t>(map)),
      "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// REQUIRES: both addresses and bytes are multiples of 16.
__device__ __forceinline__ void copy_bytes_to_shared(void* shared, const void* global,
                                                     std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

__device__ __forceinline__ void copy_bytes_to_global(void* global, const void* shared,
                                                     std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}

// global[i] += shared[i] in float32, each element atomically.
__device__ __forceinline__ void add_floats_to_global(float* global, const float* shared,
                                                     std::uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
      "r"(shared_address(shared)), "r"(bytes)
      : "memory");
}

__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// This thread's bulk groups but the last `kPending` have read their shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// This thread's bulk groups but the last `kPending` have finished, their writes visible to it.
template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// Orders this thread's accesses to shared memory before later ones of the tensor cores and the copy
// engine.
__device__ __forceinline__ void fence_proxy_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The same for global memory.
__device__ __forceinline__ void fence_proxy_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace tilefold::ptx
