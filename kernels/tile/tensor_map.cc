#include "kernels/tile/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/tile/check.h"

namespace tilefold::tile {
namespace {

constexpr int kDim[4] = {3, 1, 2, 0};  // d, seq, heads, batch: as the kernels name coordinates
constexpr std::int64_t kStrideLimit = 1ll << 40;

// The driver's function, found at run time so that programs start on machines without a driver.
using Encode = decltype(&cuTensorMapEncodeTiled);
Encode find_encode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &found));
  require(found == cudaDriverEntryPointSuccess && entry != nullptr,
          "the driver has no cuTensorMapEncodeTiled; a driver for CUDA 12 or later is needed");
  return reinterpret_cast<Encode>(entry);
}

}  // namespace

CopyCheck can_copy(const ConstTensor& t) {
  if (t.shape[3] % 8 != 0) return {false, "its width d is not a multiple of 8"};
  if (t.strides[3] != 1) return {false, "its last stride is not 1"};
  if (reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0)
    return {false, "its address is not a multiple of 16 bytes"};
  for (int i = 0; i < 3; ++i) {
    if (t.shape[i] <= 1) continue;
    if (t.strides[i] * size_of(t.dtype) % 16 != 0)
      return {false, "a stride is not a multiple of 16 bytes"};
    if (t.strides[i] <= 0) return {false, "a stride is not above 0"};
    if (t.strides[i] * size_of(t.dtype) >= kStrideLimit)
      return {false, "a stride is 2^40 bytes or more"};
  }
  return {true, ""};
}

CUtensorMap make_tensor_map(const ConstTensor& t, int box_rows) {
  static const Encode encode = find_encode();
  cuuint64_t sizes[4], strides[3];
  for (int i = 0; i < 4; ++i) {
    sizes[i] = static_cast<cuuint64_t>(std::max<std::int64_t>(t.shape[kDim[i]], 1));
    if (i == 0) continue;
    // A dimension of one element has no stride that matters; the driver wants a valid one.
    const bool single = t.shape[kDim[i]] <= 1;
    strides[i - 1] = single ? 16 : static_cast<cuuint64_t>(t.strides[kDim[i]] * size_of(t.dtype));
  }
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const auto type =
      t.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map;
  const CUresult result =
      encode(&map, type, 4, const_cast<void*>(t.data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(result == CUDA_SUCCESS, "the driver refused a tensor map (CUresult ",
          static_cast<int>(result), ") for shape ", t.shape.text(), " with strides ",
          t.strides.text());
  return map;
}

}  // namespace tilefold::tile
