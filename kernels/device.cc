// Device memory, copies and streams through the CUDA runtime.
#include "kernels/device.h"

#include <cuda_runtime_api.h>

#include <string>

#include "base/error.h"
#include "device/gpus.h"
#include "kernels/nn/matrix.h"
#include "kernels/tile/check.h"

namespace tilefold {
namespace cuda {
namespace {

using tile::check;

class DeviceMemory : public Memory {
 public:
  DeviceMemory(std::int64_t bytes, std::int64_t& allocated) : allocated_(allocated) {
    void* data = nullptr;
    if (bytes > 0 && cudaMalloc(&data, static_cast<std::size_t>(bytes)) != cudaSuccess) {
      cudaGetLastError();  // or the next launch would report it
      std::size_t free = 0, total = 0;
      check(cudaMemGetInfo(&free, &total));
      throw Error(str("device memory: ", bytes, " bytes are needed, ", free, " of ", total,
                      " are free; use a smaller batch or sequence"));
    }
    data_ = static_cast<std::byte*>(data);
    bytes_ = bytes;
    allocated_ += bytes;
  }
  ~DeviceMemory() override {
    cudaFree(data_);
    allocated_ -= bytes_;
  }

 private:
  std::int64_t& allocated_;
};

class HostMemory : public Memory {
 public:
  explicit HostMemory(std::int64_t bytes) {
    void* data = nullptr;
    if (bytes > 0) check(cudaMallocHost(&data, static_cast<std::size_t>(bytes)));
    data_ = static_cast<std::byte*>(data);
    bytes_ = bytes;
  }
  ~HostMemory() override { cudaFreeHost(data_); }
};

class CudaEvent : public Event {
 public:
  CudaEvent() { check(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming)); }
  ~CudaEvent() override { cudaEventDestroy(handle_); }
  void record(Stream& stream) override {
    check(cudaEventRecord(handle_, static_cast<CudaStream&>(stream).handle()));
  }
  void wait() override { check(cudaEventSynchronize(handle_)); }

 private:
  cudaEvent_t handle_ = nullptr;
};

// A captured graph. Takes `graph` over.
class CudaRecording : public Recording {
 public:
  CudaRecording(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    const cudaError_t status = cudaGraphInstantiate(&handle_, graph, 0);
    cudaGraphDestroy(graph);
    check(status);
  }
  ~CudaRecording() override { cudaGraphExecDestroy(handle_); }
  void replay() override { check(cudaGraphLaunch(handle_, stream_)); }

 private:
  cudaGraphExec_t handle_ = nullptr;
  cudaStream_t stream_;
};

// bf16 products of 8192^3 on random data, as PyTorch 2.11 with cuBLAS 13 runs them; of the chips
// measured so far (tools/bench/results).
double measured_matrix_flops(std::string_view name) {
  return name.find("H200") != std::string_view::npos ? 790e12 : 0;
}

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int ordinal) {
    check(cudaSetDevice(ordinal));
    cudaDeviceProp p{};
    check(cudaGetDeviceProperties(&p, ordinal));
    info_.kind = DeviceKind::cuda;
    info_.name = p.name;
    info_.memory_bytes = static_cast<std::int64_t>(p.totalGlobalMem);
    info_.processors = p.multiProcessorCount;
    info_.compute_capability = 10 * p.major + p.minor;
    info_.shared_bytes = static_cast<std::int64_t>(p.sharedMemPerBlockOptin);
    info_.l2_bytes = p.l2CacheSize;
    info_.matrix_flops = measured_matrix_flops(info_.name);
  }
  const DeviceInfo& info() const override { return info_; }
  const Backend& backend() const override { return cuda::backend(); }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CudaStream>(info_); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(); }

  std::unique_ptr<Memory> allocate(std::int64_t bytes) override {
    return std::make_unique<DeviceMemory>(bytes, allocated_);
  }
  std::unique_ptr<Memory> allocate_host(std::int64_t bytes) override {
    return std::make_unique<HostMemory>(bytes);
  }
  std::int64_t allocated_bytes() const override { return allocated_; }
  std::int64_t free_bytes() const override {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    return static_cast<std::int64_t>(free);
  }
  std::int64_t used_bytes() const override {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    return static_cast<std::int64_t>(total - free);
  }

  void copy_to_device(Stream& stream, void* to, const void* from, std::int64_t bytes) override {
    copy(stream, to, from, bytes, cudaMemcpyHostToDevice);
  }
  void copy_to_host(Stream& stream, void* to, const void* from, std::int64_t bytes) override {
    copy(stream, to, from, bytes, cudaMemcpyDeviceToHost);
  }

 private:
  static void copy(Stream& stream, void* to, const void* from, std::int64_t bytes,
                   cudaMemcpyKind kind) {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind,
                          static_cast<CudaStream&>(stream).handle()));
  }

  DeviceInfo info_;
  std::int64_t allocated_ = 0;
};

}  // namespace

CudaStream::CudaStream(const DeviceInfo& device) : device_(device) {
  check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking));
}
CudaStream::~CudaStream() { cudaStreamDestroy(handle_); }

nn::MatrixLibrary& CudaStream::matrices() {
  if (!matrices_) matrices_ = std::make_unique<nn::MatrixLibrary>(device_);
  return *matrices_;
}
std::unique_ptr<Recording> CudaStream::record(FunctionRef<void()> work) {
  check(cudaStreamBeginCapture(handle_, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(handle_, &graph);
    cudaGraphDestroy(graph);
    cudaGetLastError();  // or the next launch would report the broken capture
    throw;
  }
  check(cudaStreamEndCapture(handle_, &graph));
  return std::make_unique<CudaRecording>(graph, handle_);
}
void CudaStream::synchronize() { check(cudaStreamSynchronize(handle_)); }

}  // namespace cuda

int cuda_device_count() {
  int count = 0;
  const bool there = cudaGetDeviceCount(&count) == cudaSuccess;
  if (!there) cudaGetLastError();
  return there ? count : 0;
}

std::string_view cuda_absence() {
  static const std::string text = [] {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0) return std::string();
    cudaGetLastError();
    if (status == cudaSuccess) return std::string("the driver shows no NVIDIA GPU");
    int driver = 0;  // without one CUDA calls it too old
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
      return std::string(
          has_nvidia_driver()
              ? "this machine has an NVIDIA driver, but its library, libcuda, was not found"
              : "no NVIDIA driver was found on this machine");
    return str("CUDA finds no GPU: ", cudaGetErrorString(status));
  }();
  return text;
}

std::unique_ptr<Device> open_cuda_device(int ordinal) {
  const int count = cuda_device_count();
  if (count == 0)
    throw UsageError(str("device cuda cannot be used: ", cuda_absence(), "; device cpu works"));
  require(ordinal >= 0 && ordinal < count, "GPU ", ordinal, " is not there; allowed: 0 to ",
          count - 1);
  return std::make_unique<cuda::CudaDevice>(ordinal);
}

}  // namespace tilefold
