#include "contract/loss_head.h"

#include <algorithm>

#include "contract/linear.h"
#include "contract/workspace.h"

namespace tilefold {
namespace {

// Tokens whose logits exist at a time: 4 MiB of float32, but enough tokens for many cores and few
// enough that a long context with a small vocabulary does not fill memory with them.
constexpr std::int64_t kLogits = 1 << 20, kMinTokens = 512, kMaxTokens = 4096;

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

std::int64_t loss_head_workspace(const LossHeadProblem& problem, const DeviceInfo& device) {
  const std::int64_t stage = LossHeadStage(problem).bytes;
  if (device.kind == DeviceKind::cuda) return stage + matrix_library_workspace(device);
  return stage;
}

}  // namespace tilefold
