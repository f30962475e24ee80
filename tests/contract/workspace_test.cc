// Costs and workspace sizes of the ops.
#include "contract/workspace.h"

#include <algorithm>

#include "contract/linear.h"
#include "contract/loss_head.h"
#include "contract/norm.h"
#include "contract/optimizer.h"
#include "tests/catch.h"

namespace tilefold {
namespace {

DeviceInfo gpu() { return {.kind = DeviceKind::cuda, .compute_capability = 90}; }

TEST_CASE("linear cost: 2 tokens in out flops forward, twice that backward; each operand once") {
  const LinearProblem p{.tokens = 10, .in = 3, .out = 5, .dtype = DType::bf16};
  REQUIRE(linear_forward_cost(p).flops == 300);
  REQUIRE(linear_backward_cost(p).flops == 600);
  REQUIRE(linear_forward_cost(p).bytes == 2 * (30 + 15 + 50));
  REQUIRE(linear_backward_cost(p).bytes == 2 * (50 + 30 + 15 + 30) + 2 * 4 * 15);
}

TEST_CASE("linear workspace on the CPU: bounded in tokens, in every dtype") {
  const DeviceInfo cpu;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    REQUIRE(linear_workspace({1 << 12, 64, 64, dtype}, cpu) ==
            linear_workspace({std::int64_t{1} << 40, 64, 64, dtype}, cpu));
  // What is not widened needs the runs of dW alone.
  REQUIRE(linear_workspace({5, 3, 7, DType::f32}, cpu) == 0);
  REQUIRE(linear_workspace({8000, 64, 192, DType::f32}, cpu) == 16 * 64 * 192 * 4);
  const LinearStage stage({5, 3, 7, DType::f16});
  REQUIRE(stage.tokens == 5);
  REQUIRE(stage.x - stage.weight >= 4 * 3 * 7);
  REQUIRE(stage.y - stage.x >= 4 * 5 * 3);
  REQUIRE(stage.bytes - stage.y >= 4 * 5 * 7);
}

TEST_CASE("runs of dW: longer than they are many, at most 16, and 4 MiB of float32 in all") {
  for (const std::int64_t tokens : {1, 191, 192, 383, 384, 768, 3071, 3073, 1 << 20})
    for (const std::int64_t size : {1, 17, 128, 1024, 20000}) {
      const std::int64_t runs = weight_gradient_runs(tokens, size, size);
      REQUIRE(runs >= 1);
      REQUIRE(runs <= 16);
      if (runs > 1) {
        REQUIRE(tokens / runs >= 192);
        REQUIRE(runs * size * size <= 1 << 20);
      }
    }
  REQUIRE(weight_gradient_runs(768, 128, 384) == 4);
}

TEST_CASE("loss head workspace on the CPU: the logits of a bounded number of tokens") {
  const DeviceInfo cpu;
  const std::int64_t small = loss_head_workspace({1 << 20, 64, 64, DType::f32}, cpu);
  REQUIRE(small == loss_head_workspace({1 << 24, 64, 64, DType::f32}, cpu));
  REQUIRE(small == 4096 * 64 * 4 + 16 * 64 * 64 * 4);
  REQUIRE(loss_head_workspace({5, 64, 50257, DType::f32}, cpu) == align_workspace(5 * 50257 * 4));
  REQUIRE(LossHeadStage({1 << 20, 8, 50257, DType::f32}).tokens == 512);
}

TEST_CASE("norm backward workspace: at most 64 blocks, whatever the context") {
  const DeviceInfo cpu;
  REQUIRE(residual_norm_backward_workspace(std::int64_t{1} << 40, 16, DType::bf16, cpu) ==
          2 * 64 * 16 * 4);
  REQUIRE(residual_norm_backward_workspace(1, 16, DType::f64, cpu) == 2 * 16 * 8);
  for (std::int64_t tokens = 1; tokens < 3000; ++tokens) {
    const std::int64_t bytes = residual_norm_backward_workspace(tokens, 16, DType::f32, cpu);
    REQUIRE(bytes >= 2 * 16 * 4 * ceil_div(tokens, norm_backward_block(tokens)));
    REQUIRE(bytes <= residual_norm_backward_workspace(tokens + 1, 16, DType::f32, cpu));
  }
}

TEST_CASE("square sum workspace: a float64 for each block, and one more for each tensor's tail") {
  REQUIRE(grad_square_sum_workspace(0, 0, DeviceInfo()) == 0);
  REQUIRE(grad_square_sum_workspace(3, 3, DeviceInfo()) == 3 * 8);
  REQUIRE(grad_square_sum_workspace(16384 + 1, 1, DeviceInfo()) == 2 * 8);
}

TEST_CASE("products on the GPU have the library's workspace") {
  REQUIRE(linear_workspace({8, 8, 8, DType::bf16}, gpu()) == (32 << 20) + 256 + 64 * 8 * 4);
}

TEST_CASE("loss head on the GPU: equal pieces of whole tiles, up to a gibibyte of logits") {
  const LossHeadProblem p{.tokens = 32768, .width = 768, .vocab = 50304, .dtype = DType::bf16};
  const CudaLossHeadStage training(p, true, gpu()), evaluation(p, false, gpu());
  REQUIRE(training.tokens == 8192);
  REQUIRE(training.row == 50304);
  REQUIRE(training.matrix == 8192 * 50304 * 2);
  REQUIRE(evaluation.tokens == 4736);  // 7 pieces of float32
  REQUIRE(loss_head_workspace(p, gpu()) == std::max(training.bytes, evaluation.bytes));
  REQUIRE(
      CudaLossHeadStage({.tokens = 5, .width = 8, .vocab = 65, .dtype = DType::bf16}, true, gpu())
          .row == 72);
}

TEST_CASE("norm backward on the GPU: two runs of tokens a multiprocessor, fewer of few tokens") {
  REQUIRE(cuda_norm_backward_runs(32768, 132) == 264);
  REQUIRE(cuda_norm_backward_runs(33, 132) == 3);
  REQUIRE(cuda_norm_backward_runs(1, 132) == 1);
}

}  // namespace
}  // namespace tilefold
