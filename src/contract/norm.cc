#include "contract/norm.h"

#include <algorithm>

#include "contract/workspace.h"

namespace tilefold {

std::int64_t norm_backward_block(std::int64_t tokens) {
  return std::max<std::int64_t>(kMinNormBlock, ceil_div(tokens, kMaxNormBlocks));
}

std::int64_t cuda_norm_backward_runs(std::int64_t tokens, int processors) {
  return std::clamp<std::int64_t>(ceil_div(tokens, kMinNormBlock), 1, 2 * processors);
}

std::int64_t residual_norm_backward_workspace(std::int64_t tokens, std::int64_t width, DType dtype,
                                              const DeviceInfo& device) {
  if (device.kind == DeviceKind::cuda)
    return 2 * align_workspace(cuda_norm_backward_runs(tokens, device.processors) * width *
                               size_of(DType::f32));
  // Not fewer for more tokens (1025 make fewer blocks than 1024): what fits a batch fits a shorter.
  const std::int64_t blocks = std::min(ceil_div(tokens, kMinNormBlock), kMaxNormBlocks);
  return 2 * align_workspace(blocks * width * size_of(sum_dtype(dtype)));
}

}  // namespace tilefold
