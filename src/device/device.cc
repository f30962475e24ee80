#include "device/device.h"

#include <filesystem>

#include "base/error.h"
#include "device/gpus.h"

namespace tilefold {

std::unique_ptr<Recording> Stream::record(FunctionRef<void()>) { return nullptr; }

std::unique_ptr<Device> open_device(std::string_view name, int ordinal, int threads) {
  if (name == "cpu") return open_cpu_device(threads);
  if (name == "cuda") return open_cuda_device(ordinal);
  if (name == "auto")
    return cuda_device_count() > 0 ? open_cuda_device(ordinal) : open_cpu_device(threads);
  throw UsageError(str("device '", name, "' is unknown; allowed: auto, cpu, cuda"));
}

bool has_nvidia_driver() { return std::filesystem::exists("/dev/nvidiactl"); }

DeviceInfo describe_device(std::string_view name) {
  if (name == "cpu") {
    DeviceInfo cpu;
    cpu.shared_bytes = 1 << 20;
    return cpu;
  }
  // NVIDIA's H200 data sheet and CUDA programming guide (compute capability 9.0).
  if (name == "h200")
    return {.kind = DeviceKind::cuda,
            .name = "NVIDIA H200",
            .memory_bytes = 150754820096,  // 143,771 MiB, as the driver reports
            .processors = 132,
            .compute_capability = 90,
            .shared_bytes = 227 << 10,
            .l2_bytes = 60 << 20,
            .matrix_flops = 790e12};  // measured, as kernels/device.cc
  throw UsageError(str("device description '", name, "' is unknown; allowed: cpu, h200"));
}

}  // namespace tilefold
