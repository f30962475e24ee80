// The one way a kernel is launched.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/tile/check.h"

namespace tilefold::tile {

struct Grid {
  std::int64_t blocks;
  int threads;
  std::size_t shared_bytes = 0;  // dynamic
  int cluster = 1;               // neighbouring blocks that share a cluster
  bool early = false;  // may start before the kernel before it has ended: ptx/grid_order.cuh
};

// Whether kernels of the current device overlap so.
inline bool starts_early() {
  int device = 0, major = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 9;
}

// Throws Error when the launch is refused. Blocks of a launch are at most 2^31 - 1.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), const Grid& grid, cudaStream_t stream, const Args&... args) {
  require(grid.blocks > 0 && grid.blocks < (1ll << 31), "a launch of ", grid.blocks,
          " blocks; allowed: 1 to 2^31 - 1");
  if (grid.shared_bytes > 48 << 10)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared_bytes)));
  const bool early = grid.early && starts_early();
  if (grid.cluster == 1 && !early) {
    kernel<<<static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.threads),
             grid.shared_bytes, stream>>>(args...);
    check(cudaGetLastError());
    return;
  }
  constexpr int kPortableCluster = 8;
  if (grid.cluster > kPortableCluster)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (grid.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[count++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(grid.cluster), 1, 1};
  }
  if (early) {
    cudaLaunchAttribute& overlap = attributes[count++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(grid.blocks);
  config.blockDim = static_cast<unsigned>(grid.threads);
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, args...));
}

}  // namespace tilefold::tile
