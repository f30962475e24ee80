// In place of kernels/backend.cc in a build without CUDA: says so when asked for a GPU.
#include "base/error.h"
#include "device/device.h"
#include "device/gpus.h"

namespace tilefold {

int cuda_device_count() { return 0; }

std::string_view cuda_absence() {
  return has_nvidia_driver()
             ? "this machine has an NVIDIA GPU, but this build has no CUDA: install the "
               "CUDA toolkit and configure again"
             : "this build has no CUDA and no NVIDIA driver was found on this machine";
}

std::string gpu_pci_address(int) { throw UsageError(std::string(cuda_absence())); }
std::string gpu_link(int, int) { throw UsageError(std::string(cuda_absence())); }
std::string gpu_software() { return std::string(cuda_absence()); }

std::unique_ptr<Device> open_cuda_device(int) {
  throw UsageError(str("device cuda cannot be used: ", cuda_absence(), "; device cpu works"));
}

}  // namespace tilefold
