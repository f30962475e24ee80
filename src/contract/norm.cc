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

}  // namespace tilefold
