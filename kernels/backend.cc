// The CUDA backend table.
#include "base/error.h"
#include "kernels/attention/cuda.h"
#include "kernels/device.h"

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

// An op without a kernel yet. Training on such a device is refused when it is opened
// (has_all_ops), so that this speaks only to those who call the op by itself.
template <int kOp, class Args>
void missing(Stream&, const Args&) {
  constexpr const char* kNames[] = {"linear_forward",
                                    "linear_backward",
                                    "residual_norm_forward",
                                    "residual_norm_backward",
                                    "swiglu_forward",
                                    "swiglu_backward",
                                    "rope",
                                    "embedding_forward",
                                    "embedding_backward",
                                    "loss_head",
                                    "grad_square_sum",
                                    "adamw",
                                    "fill",
                                    "copy"};
  throw Error(str(kNames[kOp], " has no CUDA kernel in this build; device cpu has one"));
}

constexpr Backend kBackend = {
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .linear_forward = missing<0, LinearForward>,
    .linear_backward = missing<1, LinearBackward>,
    .residual_norm_forward = missing<2, ResidualNormForward>,
    .residual_norm_backward = missing<3, ResidualNormBackward>,
    .swiglu_forward = missing<4, SwigluForward>,
    .swiglu_backward = missing<5, SwigluBackward>,
    .rope = missing<6, Rope>,
    .embedding_forward = missing<7, EmbeddingForward>,
    .embedding_backward = missing<8, EmbeddingBackward>,
    .loss_head = missing<9, LossHead>,
    .grad_square_sum = missing<10, GradSquareSum>,
    .adamw = missing<11, AdamW>,
    .fill = missing<12, Fill>,
    .copy = missing<13, Copy>,
};

}  // namespace

const Backend& backend() { return kBackend; }
bool has_all_ops() { return false; }

}  // namespace tilefold::cuda
