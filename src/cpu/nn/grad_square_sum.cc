// sum = sum over all tensors and elements of grad^2, in float64: block sums in the workspace, then
// the blocks in order.
#include "contract/optimizer.h"
#include "cpu/nn/element.h"
#include "cpu/ops.h"
#include "cpu/stream.h"

namespace tilefold::cpu {
namespace {

template <class A>
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]] double square_sum(
    std::int64_t count, const A* grad) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) {
    const double g = static_cast<double>(grad[i]);
    sum += g * g;
  }
  return sum;
}

}  // namespace

void grad_square_sum(Stream& stream, const GradSquareSum& args) {
  double* sums = reinterpret_cast<double*>(args.workspace.data());
  std::int64_t blocks = 0;
  for (const ConstTensor& grad : args.grads) blocks += ceil_div(grad.numel(), kGradSquareBlock);
  pool_of(stream).parallel_for(blocks, [&](std::int64_t block, int) {
    std::int64_t first = 0;
    for (const ConstTensor& grad : args.grads) {
      const std::int64_t here = ceil_div(grad.numel(), kGradSquareBlock);
      if (block < first + here) {
        const std::int64_t begin = (block - first) * kGradSquareBlock;
        const std::int64_t count = std::min(kGradSquareBlock, grad.numel() - begin);
        sums[block] = grad.dtype == DType::f64 ? square_sum(count, grad.as<double>() + begin)
                                               : square_sum(count, grad.as<float>() + begin);
        return;
      }
      first += here;
    }
  });
  double sum = 0;
  for (std::int64_t block = 0; block < blocks; ++block) sum += sums[block];
  args.sum.as<double>()[0] = sum;
}

}  // namespace tilefold::cpu
