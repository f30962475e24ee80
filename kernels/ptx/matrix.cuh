// Moves of 8x8 matrices of 16-bit elements between registers and shared memory, and the registers
// of a warpgroup. PTX ISA 9.0.
#pragma once

#include <cstdint>

namespace tilefold::ptx {

// Four matrices; lane l holds row l / 4, columns 2 (l % 4) and + 1 of each, and names the address
// of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(std::uint32_t shared, std::uint32_t a,
                                               std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// All warps of a warpgroup give back, or take, registers of the block's pool.
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tilefold::ptx
