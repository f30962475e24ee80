// Asynchronous copies of 16 bytes, global to shared memory, from compute capability 8.0 on. A
// thread waits for its own copies; a barrier then shows them to others. PTX ISA 9.0, "cp.async".
#pragma once

#include <cstdint>

namespace tilefold::ptx {

// The first `bytes` (0 or 16) of 16; the rest become zero, unread.
__device__ __forceinline__ void copy_async(std::uint32_t shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}

// Closes a group, empty ones too.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// All of this thread's groups but the last kPending have arrived.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void store_shared(std::uint32_t shared, uint4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
}

__device__ __forceinline__ float4 load_shared(std::uint32_t shared) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(shared)
               : "memory");
  return x;
}

__device__ __forceinline__ float2 load_shared_pair(std::uint32_t shared) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(shared) : "memory");
  return x;
}

}  // namespace tilefold::ptx
