// A ring of buffers between the warps that fill them and the warps that read them.
//
//   producer: wait empty[stage], copy with bytes counted on full[stage], next
//   consumer: wait full[stage], read, arrive on empty[stage], next
#pragma once

#include <cstdint>

#include "kernels/ptx/barrier.cuh"
#include "kernels/tile/warpgroup.cuh"

namespace tilefold::tile {

template <int kStages>
struct RingBarriers {
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];

  // By one thread, before the block's first barrier.
  __device__ void init(int fills, int releases) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&full[i], static_cast<std::uint32_t>(fills));
      ptx::mbarrier_init(&empty[i], static_cast<std::uint32_t>(releases));
    }
  }
};

// One side's place in a ring: how many buffers it has been through.
template <int kStages>
struct RingPlace {
  std::uint32_t count = 0;

  __device__ __forceinline__ std::uint32_t stage() const { return count % kStages; }
  // Parity of the times around.
  __device__ __forceinline__ std::uint32_t round() const { return count / kStages & 1; }
  __device__ __forceinline__ void next() { ++count; }
  __device__ __forceinline__ void wait_full(RingBarriers<kStages>& ring) const {
    ptx::mbarrier_wait(&ring.full[stage()], round());
  }
  // The first time around every buffer is empty.
  __device__ __forceinline__ void wait_empty(RingBarriers<kStages>& ring) const {
    ptx::mbarrier_wait(&ring.empty[stage()], round() ^ 1);
  }
  // Once per warp: each warp waited for its own part of the products that read the buffer.
  __device__ __forceinline__ void release(RingBarriers<kStages>& ring) const {
    if (lane() == 0) ptx::mbarrier_arrive(&ring.empty[stage()]);
  }
};

}  // namespace tilefold::tile
