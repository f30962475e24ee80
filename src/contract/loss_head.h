// From hidden states to cross-entropy and its gradient, in one op: logits are made, used, dropped.
//   z = h W^T        loss_t = ln sum_v exp(z_tv) - z_t,target     (natural log)
//   dz_t = softmax(z_t) - onehot(target_t)       dh = dz W        dW += dz^T h
// Token t without a target (-1) has loss 0 and no gradient. Gradients are those of the SUM of
// losses; the division by the number of targets happens in the update (see optimizer.h).
#pragma once

#include <cstddef>
#include <span>

#include "base/device_info.h"
#include "base/tensor.h"

namespace tilefold {

struct LossHead {
  ConstTensor hidden;   // [tokens, width] model dtype
  ConstTensor weight;   // [vocab, width] model dtype
  ConstTensor targets;  // [tokens] i32 in [-1, vocab)
  Tensor losses;        // [tokens] f32 (f64 for f64), written
  Tensor predictions;   // [tokens] i32: argmax of the logits (the first of equals), or empty
  Tensor loss_sum;      // [1] f64, added to: sum of losses, in a fixed order; or empty
  Tensor dhidden;       // [tokens, width] model dtype, written; empty: no gradients
  Tensor dweight;       // [vocab, width] f32 (f64 for f64), added to; empty without dhidden
  std::span<std::byte> workspace;
};

struct LossHeadProblem {
  std::int64_t tokens = 0, width = 0, vocab = 0;
  DType dtype = DType::f32;
};

// What the workspace holds on the CPU, as byte offsets: the logits of a fixed number of tokens at a
// time, in the type that sums are kept in, and 16-bit operands as float32.
struct LossHeadStage {
  explicit LossHeadStage(const LossHeadProblem& problem);
  std::int64_t tokens = 0;   // at a time
  std::int64_t logits = 0;   // [tokens, vocab]; then their gradient
  std::int64_t runs = 0;     // of dW, see linear.h: [runs, vocab, width]
  std::int64_t weight = 0;   // [vocab, width]; 16-bit only, as the next two
  std::int64_t hidden = 0;   // [tokens, width]
  std::int64_t dhidden = 0;  // [tokens, width]
  std::int64_t bytes = 0;
};

// On a GPU: logits of a fixed number of tokens at a time, in the model's dtype where their gradient
// takes their place (as tensor cores read it), in float32 where there is none; then the matrix
// library's bytes. Rows of logits are padded, so that each starts at a multiple of 16 bytes.
struct CudaLossHeadStage {
  CudaLossHeadStage(const LossHeadProblem& problem, bool gradients, const DeviceInfo& device);
  std::int64_t tokens = 0;  // at a time
  std::int64_t row = 0;     // elements from one token's logits to the next's
  std::int64_t logits = 0;  // [tokens, row]
  std::int64_t matrix = 0;  // matrix_library_workspace()
  std::int64_t bytes = 0;
};

// Enough with and without gradients.
std::int64_t loss_head_workspace(const LossHeadProblem& problem, const DeviceInfo& device);

}  // namespace tilefold
