// The CUDA backend table.
#include "kernels/attention/cuda.h"
#include "kernels/device.h"
#include "kernels/nn/matrix.h"
#include "kernels/nn/ops.h"

namespace tilefold::cuda {
namespace {

void attention_forward(Stream& stream, const AttentionForward& args,
                       const AttentionChoice& choice) {
  const auto& cuda = static_cast<CudaStream&>(stream);
  attention::cuda_forward(args, choice, cuda.processors(), cuda.handle());
}

void attention_backward(Stream& stream, const AttentionBackward& args,
                        const AttentionChoice& choice) {
  const auto& cuda = static_cast<CudaStream&>(stream);
  attention::cuda_backward(args, choice, cuda.processors(), cuda.handle());
}

// An op of kernels/nn on the stream of the call.
template <auto kOp, class Args>
void run(Stream& stream, const Args& args) {
  const auto& cuda = static_cast<CudaStream&>(stream);
  kOp(nn::Queue{cuda.handle(), cuda.device()}, args);
}

// The same for ops with matrix products.
template <auto kOp, class Args>
void run_products(Stream& stream, const Args& args) {
  auto& cuda = static_cast<CudaStream&>(stream);
  kOp(nn::Queue{cuda.handle(), cuda.device()}, cuda.matrices(), args);
}

constexpr Backend kBackend = {
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .linear_forward = run_products<nn::linear_forward, LinearForward>,
    .linear_backward = run_products<nn::linear_backward, LinearBackward>,
    .residual_norm_forward = run<nn::residual_norm_forward, ResidualNormForward>,
    .residual_norm_backward = run<nn::residual_norm_backward, ResidualNormBackward>,
    .swiglu_forward = run<nn::swiglu_forward, SwigluForward>,
    .swiglu_backward = run<nn::swiglu_backward, SwigluBackward>,
    .rope = run<nn::rope, Rope>,
    .embedding_forward = run<nn::embedding_forward, EmbeddingForward>,
    .embedding_backward = run<nn::embedding_backward, EmbeddingBackward>,
    .loss_head = run_products<nn::loss_head, LossHead>,
    .grad_square_sum = run<nn::grad_square_sum, GradSquareSum>,
    .adamw = run<nn::adamw, AdamW>,
    .cache_append = run<nn::cache_append, CacheAppend>,
    .normed_linear = run<nn::normed_linear, NormedLinear>,
    .linear_add = run<nn::linear_add, LinearAdd>,
    .likeliest = run<nn::likeliest, Likeliest>,
    .fill = run<nn::fill, Fill>,
    .copy = run<nn::copy, Copy>,
};

}  // namespace

const Backend& backend() { return kBackend; }

}  // namespace tilefold::cuda
