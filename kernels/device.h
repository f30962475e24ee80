// The GPU's stream, as the backend's functions take it.
#pragma once

#include "device/device.h"

struct CUstream_st;

namespace tilefold::cuda {

class CudaStream : public Stream {
 public:
  explicit CudaStream(int processors);
  ~CudaStream() override;
  void synchronize() override;
  void* native() const override { return handle_; }
  CUstream_st* handle() const { return handle_; }
  int processors() const { return processors_; }

 private:
  CUstream_st* handle_ = nullptr;
  int processors_;
};

// The backend table. Ops that have no kernel yet throw, saying so.
const Backend& backend();
// Whether each op has a kernel, so that a model can be trained.
bool has_all_ops();

}  // namespace tilefold::cuda
