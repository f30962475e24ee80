// The update: global norm of the gradients, then AdamW over all parameters in one op.
//
//   n = target tokens of the global batch         g = grad / n
//   norm = sqrt(grad_square_sum) / n              c = clip > 0 ? min(1, clip / norm) : 1
//   m = b1 m + (1 - b1) c g        v = b2 v + (1 - b2) (c g)^2
//   w -= lr (m / bias_correction1 / (sqrt(v / bias_correction2) + eps) + decay w)
//
// Loshchilov, Hutter, "Decoupled Weight Decay Regularization" (2019); decay acts on matrices only.
// If the norm is not finite, nothing is written: weights, m and v keep their bits. n == 0 (a batch
// without targets) writes nothing either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/device_info.h"
#include "base/tensor.h"
#include "contract/step_state.h"

namespace tilefold {

struct GradSquareSum {
  std::span<const ConstTensor> grads;  // each dense, f32 (f64 for f64)
  Tensor sum;                          // [1] f64, written: sum of squares in a fixed order
  std::span<std::byte> workspace;
};
// Each tensor is summed in blocks of this many elements, one float64 a block in the workspace.
constexpr std::int64_t kGradSquareBlock = 16384;
std::int64_t grad_square_sum_workspace(std::int64_t elements, std::int64_t tensors,
                                       const DeviceInfo& device);

struct AdamWParameter {
  Tensor master;     // [...] f32 (f64 for f64), dense
  Tensor weight;     // [...] 16-bit copy, rewritten from master; empty where the model reads master
  ConstTensor grad;  // [...] f32 (f64 for f64)
  Tensor m, v;       // [...] f32 (f64 for f64)
  bool decay = false;
};

struct AdamW {
  std::span<const AdamWParameter> parameters;
  ConstTensor grad_square_sum;         // [1] f64
  const StepState* state = nullptr;    // device memory: step, learning rate, tokens, corrections
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip = 1.0;  // clip 0: none
};

}  // namespace tilefold
