// A linear layer over tokens, with its epilogue.
//   forward   z = x W^T + b        y = epilogue(z)
//   backward  dx = dy W            (times gelu'(x_pre) where x = gelu(x_pre) came out of a linear)
//             dW += dy^T x         db += sum_t dy          float32 sums over tokens
//   gelu(z) = z/2 (1 + erf(z / sqrt 2))  (the exact one)
// flops 2 tokens in out forward, twice that backward.
#pragma once

#include <cstddef>
#include <span>

#include "base/device_info.h"
#include "base/tensor.h"
#include "contract/cost.h"

namespace tilefold {

enum class Epilogue : std::uint8_t { none, gelu };

struct LinearForward {
  ConstTensor x;       // [tokens, in]   rows may be strided
  ConstTensor weight;  // [out, in]
  ConstTensor bias;    // [out], or empty
  Tensor y;            // [tokens, out]  of x's dtype, or float32
  Epilogue epilogue = Epilogue::none;
  Tensor pre;  // [tokens, out] z, written when the epilogue is gelu; else empty
  std::span<std::byte> workspace;
};

struct LinearBackward {
  ConstTensor dy;      // [tokens, out]  gradient of z
  ConstTensor x;       // [tokens, in]
  ConstTensor weight;  // [out, in]
  ConstTensor x_pre;   // [tokens, in] where x = gelu(x_pre) and dx is wanted for x_pre; else empty
  Tensor dx;           // [tokens, in], or empty; written
  Tensor dweight;      // [out, in] float32 (float64 for f64); added to
  Tensor dbias;        // [out] float32 (float64 for f64), or empty; added to
  std::span<std::byte> workspace;
};

struct LinearProblem {
  std::int64_t tokens = 0, in = 0, out = 0;
  DType dtype = DType::f32;
};

Cost linear_forward_cost(const LinearProblem& problem);
Cost linear_backward_cost(const LinearProblem& problem);

// On the CPU dy^T x is summed in this many runs of tokens, each into a matrix of its own, which are
// then added in order: runs, unlike rows of dW, need no operand twice. 1: straight into dW.
std::int64_t weight_gradient_runs(std::int64_t tokens, std::int64_t in, std::int64_t out);

// What the workspace holds on the CPU, as byte offsets. 16-bit operands are multiplied as float32:
// the weight is widened whole, tokens a fixed number at a time. Other dtypes are used in place.
struct LinearStage {
  explicit LinearStage(const LinearProblem& problem);
  std::int64_t tokens = 0;  // at a time; all where nothing is widened
  std::int64_t runs = 0;    // [weight_gradient_runs(tokens, in, out), out, in]
  std::int64_t weight = 0;  // [out, in]; 16-bit only, as the next two
  std::int64_t x = 0;       // [tokens, in]; then dx
  std::int64_t y = 0;       // [tokens, out]: z, or dy
  std::int64_t bytes = 0;
};

// On a GPU: the matrix library's bytes, then the bias gradient's sums over this many runs of tokens.
constexpr std::int64_t kBiasRuns = 64;
struct CudaLinearStage {
  CudaLinearStage(const LinearProblem& problem, const DeviceInfo& device);
  std::int64_t bias = 0;  // [kBiasRuns, out] f32
  std::int64_t bytes = 0;
};

// Enough for forward and for backward.
std::int64_t linear_workspace(const LinearProblem& problem, const DeviceInfo& device);

}  // namespace tilefold
