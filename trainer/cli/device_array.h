// Arrays in a device's memory for commands that work on whole arrays: converted from and to host
// float32.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/tensor.h"
#include "device/device.h"

namespace tilefold {

class DeviceArray {
 public:
  DeviceArray() = default;
  // Not initialized.
  DeviceArray(Context ctx, DType dtype, const Shape& shape);
  // `values` row-major, rounded to dtype: f32, bf16 or f16.
  DeviceArray(Context ctx, DType dtype, const Shape& shape, std::span<const float> values);
  DeviceArray(Context ctx, const Shape& shape, std::span<const std::int64_t> values);

  const Tensor& view() const { return view_; }
  std::vector<float> to_host(Context ctx) const;  // widened, row-major

 private:
  std::unique_ptr<Memory> memory_;
  Tensor view_;
};

}  // namespace tilefold
