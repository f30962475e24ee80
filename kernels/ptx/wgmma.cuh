// The warpgroup matrix product's order and operands. PTX ISA 9.0, "Asynchronous Warpgroup Level
// Matrix Instructions".
#pragma once

#include <cstdint>

#include "kernels/ptx/wgmma_products.cuh"

namespace tilefold::ptx {

// Before the first product that reads registers written by other instructions.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// All committed groups but the last `kPending` are finished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A matrix in shared memory with 128-byte swizzle: rows of 128 bytes, groups of 8 rows 1024 bytes
// apart. `leading` is the distance in bytes of the next 64 elements along the contiguous dimension
// where that is m or n (unused where it is k). The operand begins `offset` bytes further on; adding
// that last leaves one addition between products.
__device__ __forceinline__ std::uint64_t matrix_descriptor(std::uint32_t address,
                                                           std::uint32_t leading,
                                                           std::uint32_t offset) {
  constexpr std::uint64_t kSwizzle128 = 1ull << 62;
  constexpr std::uint64_t kEightRows = static_cast<std::uint64_t>(1024 >> 4) << 32;
  return (kSwizzle128 | kEightRows | (static_cast<std::uint64_t>(leading >> 4) << 16) |
          ((address & 0x3ffffu) >> 4)) +
         (offset >> 4);
}

}  // namespace tilefold::ptx
