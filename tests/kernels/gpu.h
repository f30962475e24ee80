// The GPU that the tests of the kernels run on.
#pragma once

#include <memory>

#include "device/device.h"

namespace tilefold::test {

// The first GPU, or nothing after printing "SKIPPED:" and why.
struct Gpu {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  Context context() { return {*device, *stream}; }
  explicit operator bool() const { return device != nullptr; }
};
Gpu gpu_or_skip();

}  // namespace tilefold::test
