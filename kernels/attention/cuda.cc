#include "kernels/attention/cuda.h"

#include "kernels/attention/hopper.h"
#include "kernels/attention/naive.h"
#include "kernels/attention/plain.h"
#include "kernels/attention/portable.h"

namespace tilefold::attention {
namespace {

// The row that runs: of the Hopper kernels' only where they can move all tensors.
template <class Args>
AttentionKernel kernel_of(const Args& args, const AttentionChoice& choice) {
  if (choice.kernel == AttentionKernel::hopper && !hopper_copies(args))
    return AttentionKernel::portable;
  return choice.kernel;
}

}  // namespace

void cuda_forward(const AttentionForward& args, const AttentionChoice& choice, int processors,
                  CUstream_st* stream) {
  switch (kernel_of(args, choice)) {
    case AttentionKernel::hopper:
      return hopper_forward(args, processors, stream);
    case AttentionKernel::portable:
      return portable_forward(args, choice, stream);
    case AttentionKernel::naive:
      return naive_forward(args, stream);
    default:
      return plain_forward(args, stream);
  }
}

void cuda_backward(const AttentionBackward& args, const AttentionChoice& choice, int processors,
                   CUstream_st* stream) {
  switch (kernel_of(args, choice)) {
    case AttentionKernel::hopper:
      return hopper_backward(args, processors, stream);
    case AttentionKernel::portable:
      return portable_backward(args, stream);
    case AttentionKernel::naive:
      return naive_backward(args, stream);
    default:
      return plain_backward(args, stream);
  }
}

}  // namespace tilefold::attention
