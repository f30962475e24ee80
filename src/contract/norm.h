// Residual addition and the normalization of the sum that is stored, in one op.
//   sum = residual + dropout(branch), rounded to the residual's dtype (sum = residual if no branch)
//   rms    rstd = 1 / sqrt(mean(sum^2) + eps)                      y = sum rstd w
//   layer  mu = mean(sum), rstd = 1 / sqrt(mean((sum - mu)^2) + eps)  y = (sum - mu) rstd w + b
// backward, with g = dy w, x^ the normalized sum:
//   rms    dsum += rstd (g - x^ mean(g x^))
//   layer  dsum += rstd (g - mean(g) - x^ mean(g x^))
//   dw += sum_t dy x^      db += sum_t dy      dbranch = dropout'(dsum)
// Reductions in float32 (float64 for f64).
#pragma once

#include <cstddef>
#include <span>

#include "base/device_info.h"
#include "base/tensor.h"
#include "contract/dropout.h"

namespace tilefold {

enum class NormKind : std::uint8_t { rms, layer };

struct ResidualNormForward {
  NormKind kind = NormKind::rms;
  float eps = 1e-5f;
  ConstTensor residual;  // [tokens, width] residual dtype
  ConstTensor branch;    // [tokens, width] model dtype, or empty
  ConstTensor weight;    // [width] model dtype
  ConstTensor bias;      // [width] model dtype, or empty
  Tensor sum;            // [tokens, width] residual dtype; may be residual itself; empty if no branch
  Tensor y;              // [tokens, width] model dtype
  Tensor mean;           // [tokens] f32 (f64 for f64); empty for rms
  Tensor rstd;           // [tokens] f32 (f64 for f64)
  Dropout dropout;       // of the branch
};

struct ResidualNormBackward {
  NormKind kind = NormKind::rms;
  ConstTensor dy;      // [tokens, width] model dtype
  ConstTensor sum;     // [tokens, width] residual dtype: what forward normalized
  ConstTensor weight;  // [width] model dtype
  ConstTensor mean;    // [tokens]; empty for rms
  ConstTensor rstd;    // [tokens]
  Tensor dsum;         // [tokens, width] residual dtype; in: gradient from the sum's later readers,
                       // out: with the norm's part added
  Tensor dbranch;      // [tokens, width] model dtype, written; or empty
  Tensor dweight;      // [width] f32 (f64 for f64), added to
  Tensor dbias;        // [width] f32 (f64 for f64), added to; or empty
  Dropout dropout;     // as in forward
  std::span<std::byte> workspace;
};

// Backward sums dw and db over blocks of this many tokens, then over the blocks in order; the
// workspace holds the blocks' sums.
constexpr std::int64_t kMinNormBlock = 16, kMaxNormBlocks = 64;
std::int64_t norm_backward_block(std::int64_t tokens);
// On a GPU: runs of equal length, two for each multiprocessor, or as many as kMinNormBlock tokens each
// make.
std::int64_t cuda_norm_backward_runs(std::int64_t tokens, int processors);
std::int64_t residual_norm_backward_workspace(std::int64_t tokens, std::int64_t width, DType dtype,
                                              const DeviceInfo& device);

}  // namespace tilefold
