#include "contract/loss_head.h"

#include <algorithm>

#include "contract/linear.h"
#include "contract/workspace.h"

namespace tilefold {
namespace {

// Tokens whose logits exist at a time: 4 MiB of float32, but enough tokens for many cores and few
// enough that a long context with a small vocabulary does not fill memory with them.
constexpr std::int64_t kLogits = 1 << 20, kMinTokens = 512, kMaxTokens = 4096;

// On a GPU: up to a gibibyte of logits, in equal pieces of whole tiles. dW is read and written once a
// piece: at 8192 tokens and bfloat16 that is a tenth of the logits' own traffic.
constexpr std::int64_t kCudaLogitBytes = std::int64_t{1} << 30, kCudaTile = 128;

}  // namespace

LossHeadStage::LossHeadStage(const LossHeadProblem& p) {
  const std::int64_t size = size_of(sum_dtype(p.dtype));
  tokens = std::min(
      p.tokens, std::clamp(kLogits / std::max<std::int64_t>(p.vocab, 1), kMinTokens, kMaxTokens));
  runs = logits + align_workspace(tokens * p.vocab * size);
  const std::int64_t count = weight_gradient_runs(tokens, p.width, p.vocab);
  bytes = runs + (count > 1 ? align_workspace(count * p.vocab * p.width * size) : 0);
  if (p.dtype == sum_dtype(p.dtype)) return;
  weight = bytes;
  hidden = weight + align_workspace(p.vocab * p.width * size);
  dhidden = hidden + align_workspace(tokens * p.width * size);
  bytes = dhidden + align_workspace(tokens * p.width * size);
}

CudaLossHeadStage::CudaLossHeadStage(const LossHeadProblem& p, bool gradients,
                                     const DeviceInfo& device) {
  const std::int64_t size = gradients ? size_of(p.dtype) : size_of(DType::f32);
  row = ceil_div(p.vocab, 8) * 8;
  const std::int64_t fit = std::max<std::int64_t>(kCudaLogitBytes / (row * size), kCudaTile);
  const std::int64_t pieces = std::max<std::int64_t>(ceil_div(p.tokens, fit), 1);
  tokens = std::min(p.tokens, ceil_div(ceil_div(p.tokens, pieces), kCudaTile) * kCudaTile);
  matrix = align_workspace(tokens * row * size);
  bytes = matrix + matrix_library_workspace(device);
}

std::int64_t loss_head_workspace(const LossHeadProblem& problem, const DeviceInfo& device) {
  if (device.kind == DeviceKind::cuda)
    return std::max(CudaLossHeadStage(problem, true, device).bytes,
                    CudaLossHeadStage(problem, false, device).bytes);
  return LossHeadStage(problem).bytes;
}

}  // namespace tilefold
