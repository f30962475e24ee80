#include "contract/norm.h"

#include <algorithm>

#include "contract/workspace.h"

namespace tilefold {

std::int64_t norm_backward_block(std::int64_t tokens) {
  return std::max<std::int64_t>(kMinNormBlock, ceil_div(tokens, kMaxNormBlocks));
}

std::int64_t residual_norm_backward_workspace(std::int64_t tokens, std::int64_t width, DType dtype,
                                              const DeviceInfo&) {
  // Not fewer for more tokens (1025 make fewer blocks than 1024): what fits a batch fits a shorter.
  const std::int64_t blocks = std::min(ceil_div(tokens, kMinNormBlock), kMaxNormBlocks);
  return 2 * align_workspace(blocks * width * size_of(sum_dtype(dtype)));
}

Cost residual_norm_forward_cost(std::int64_t tokens, std::int64_t width, DType dtype,
                                DType residual_dtype) {
  const double elements = static_cast<double>(tokens) * static_cast<double>(width);
  // Residual in, sum out; branch in, y out. Square, add, two products and the residual's addition.
  const std::int64_t bytes = 2 * size_of(residual_dtype) + 2 * size_of(dtype);
  return {.flops = 5 * elements, .bytes = elements * static_cast<double>(bytes)};
}

}  // namespace tilefold
