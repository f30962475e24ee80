#include "contract/linear.h"

#include <algorithm>

#include "contract/workspace.h"

namespace tilefold {
namespace {

// Staged rows of the widest layer of a small model (512) then fill half of a 4 MiB L2 cache.
constexpr std::int64_t kStagedTokens = 1024;

// A run of dW is long enough that its product is worth a BLAS call (192 tokens: 90% of the speed of
// 1024), all runs together take 4 MiB of float32, and sixteen keep sixteen cores busy.
constexpr std::int64_t kRunTokens = 192, kRunElements = 1 << 20, kMaxRuns = 16;

double product_flops(const LinearProblem& p) {
  return 2.0 * static_cast<double>(p.tokens) * static_cast<double>(p.in) *
         static_cast<double>(p.out);
}

}  // namespace

Cost linear_forward_cost(const LinearProblem& p) {
  const std::int64_t elements = p.tokens * (p.in + p.out) + p.in * p.out;
  return {.flops = product_flops(p), .bytes = static_cast<double>(elements * size_of(p.dtype))};
}

Cost linear_backward_cost(const LinearProblem& p) {
  // dy, x, W and dx once; dW is read and written in its own type.
  const std::int64_t elements = p.tokens * (2 * p.in + p.out) + p.in * p.out;
  const std::int64_t gradient = 2 * p.in * p.out * size_of(sum_dtype(p.dtype));
  return {.flops = 2 * product_flops(p),
          .bytes = static_cast<double>(elements * size_of(p.dtype) + gradient)};
}

std::int64_t weight_gradient_runs(std::int64_t tokens, std::int64_t in, std::int64_t out) {
  const std::int64_t fit = kRunElements / std::max<std::int64_t>(in * out, 1);
  return std::clamp<std::int64_t>(std::min(tokens / kRunTokens, fit), 1, kMaxRuns);
}

LinearStage::LinearStage(const LinearProblem& p) {
  const std::int64_t size = size_of(sum_dtype(p.dtype));
  const bool widened = p.dtype != sum_dtype(p.dtype);
  tokens = widened ? std::min(p.tokens, kStagedTokens) : p.tokens;
  const std::int64_t count = weight_gradient_runs(tokens, p.in, p.out);
  bytes = count > 1 ? align_workspace(count * p.out * p.in * size) : 0;
  if (!widened) return;
  weight = bytes;
  x = weight + align_workspace(p.out * p.in * size);
  y = x + align_workspace(tokens * p.in * size);
  bytes = y + align_workspace(tokens * p.out * size);
}

CudaLinearStage::CudaLinearStage(const LinearProblem& p, const DeviceInfo& device)
    : bias(align_workspace(matrix_library_workspace(device))),
      bytes(bias + align_workspace(kBiasRuns * p.out * size_of(DType::f32))) {}

std::int64_t linear_workspace(const LinearProblem& problem, const DeviceInfo& device) {
  if (device.kind == DeviceKind::cuda) return CudaLinearStage(problem, device).bytes;
  return LinearStage(problem).bytes;
}

}  // namespace tilefold
