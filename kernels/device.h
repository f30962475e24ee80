// The GPU's stream, as the backend's functions take it.
#pragma once

#include "device/device.h"

struct CUstream_st;

namespace tilefold::nn {
class MatrixLibrary;
}

namespace tilefold::cuda {

class CudaStream : public Stream {
 public:
  // The device's description outlives the stream.
  explicit CudaStream(const DeviceInfo& device);
  ~CudaStream() override;
  void synchronize() override;
  std::unique_ptr<Recording> record(FunctionRef<void()> work) override;
  void* native() const override { return handle_; }
  CUstream_st* handle() const { return handle_; }
  const DeviceInfo& device() const { return device_; }
  int processors() const { return device_.processors; }
  // Opened when it is first asked for.
  nn::MatrixLibrary& matrices();

 private:
  CUstream_st* handle_ = nullptr;
  const DeviceInfo& device_;
  std::unique_ptr<nn::MatrixLibrary> matrices_;
};

const Backend& backend();

}  // namespace tilefold::cuda
