// Turns between blocks: a counter in global memory that one block raises and another waits for.
#pragma once

#include <cstdint>

namespace tilefold::ptx {

// What was written before a value that this returns was released is visible after.
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* counter) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

__device__ __forceinline__ void store_release(std::uint32_t* counter, std::uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// Returns what was there.
__device__ __forceinline__ std::uint32_t add_acquire_release(std::uint32_t* counter,
                                                             std::uint32_t value) {
  std::uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(value)
               : "memory");
  return before;
}

}  // namespace tilefold::ptx
