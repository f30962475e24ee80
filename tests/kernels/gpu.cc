#include "tests/kernels/gpu.h"

#include <cstdio>

namespace tilefold::test {

Gpu gpu_or_skip() {
  Gpu gpu;
  if (cuda_device_count() == 0) {
    std::printf("SKIPPED: %s\n", std::string(cuda_absence()).c_str());
    return gpu;
  }
  gpu.device = open_cuda_device(0);
  gpu.stream = gpu.device->make_stream();
  return gpu;
}

}  // namespace tilefold::test
