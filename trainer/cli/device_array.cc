#include "trainer/cli/device_array.h"

#include <algorithm>

namespace tilefold {
namespace {

template <class T>
std::vector<std::byte> narrowed(std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  T* to = reinterpret_cast<T*>(bytes.data());
  for (std::size_t i = 0; i < values.size(); ++i) to[i] = T(values[i]);
  return bytes;
}

template <class T>
std::vector<float> widened(const std::vector<std::byte>& bytes) {
  const T* from = reinterpret_cast<const T*>(bytes.data());
  return {from, from + bytes.size() / sizeof(T)};
}

void copy_in(Context ctx, const Tensor& to, const void* from) {
  if (to.bytes() == 0) return;
  ctx.device.copy_to_device(ctx.stream, to.data, from, to.bytes());
  ctx.stream.synchronize();
}

}  // namespace

DeviceArray::DeviceArray(Context ctx, DType dtype, const Shape& shape)
    : memory_(ctx.device.allocate(std::max<std::int64_t>(shape.numel() * size_of(dtype), 1))),
      view_(memory_->data(), dtype, shape) {}

DeviceArray::DeviceArray(Context ctx, DType dtype, const Shape& shape,
                         std::span<const float> values)
    : DeviceArray(ctx, dtype, shape) {
  expect(static_cast<std::int64_t>(values.size()) == shape.numel(), "values for another shape");
  expect(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
         "a device array of this dtype is not made from float32");
  if (dtype == DType::f32) copy_in(ctx, view_, values.data());
  if (dtype == DType::bf16) copy_in(ctx, view_, narrowed<bf16>(values).data());
  if (dtype == DType::f16) copy_in(ctx, view_, narrowed<f16>(values).data());
}

DeviceArray::DeviceArray(Context ctx, const Shape& shape, std::span<const std::int64_t> values)
    : DeviceArray(ctx, DType::i64, shape) {
  copy_in(ctx, view_, values.data());
}

std::vector<float> DeviceArray::to_host(Context ctx) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(view_.bytes()));
  if (!bytes.empty()) ctx.device.copy_to_host(ctx.stream, bytes.data(), view_.data, view_.bytes());
  ctx.stream.synchronize();
  switch (view_.dtype) {
    case DType::bf16:
      return widened<bf16>(bytes);
    case DType::f16:
      return widened<f16>(bytes);
    default:
      expect(view_.dtype == DType::f32, "a device array of this dtype does not become float32");
      return widened<float>(bytes);
  }
}

}  // namespace tilefold
