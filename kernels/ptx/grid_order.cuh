// Kernels of one stream that overlap: one launched with tile::Grid::early starts when all blocks of
// the kernel before it have called let_next_start() or ended. PTX ISA 9.0, "griddepcontrol"; from
// compute capability 9.0 on, nothing before (and launch() overlaps nothing there).
//
// Before wait_for_last() a kernel reads only what no kernel writes that lets the next one start
// (weights, offsets of documents), and writes nothing. At least one thread of it waits, or a third
// kernel could start beside the first.
#pragma once

namespace tilefold::ptx {

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Until the kernels before this one have ended and what they wrote is visible.
__device__ __forceinline__ void wait_for_last() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The line of an address in global memory, into the L2 cache.
__device__ __forceinline__ void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace tilefold::ptx
