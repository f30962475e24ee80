#include "kernels/attention/cuda.h"

#include "kernels/attention/hopper.h"
#include "kernels/attention/naive.h"
#include "kernels/attention/plain.h"
#include "kernels/attention/portable.h"

namespace tilefold::attention {
namespace {

// What runs: of the Hopper kernels only where they can move all tensors, else the portable ones
// over whole rows, which need no workspace forward.
template <class Args>
AttentionChoice runnable(const Args& args, AttentionChoice choice) {
  if (choice.kernel != AttentionKernel::hopper || hopper_copies(args)) return choice;
  choice.kernel = AttentionKernel::portable;
  choice.strategy = AttentionStrategy::tiled;
  choice.splits = 1;
  return choice;
}

}  // namespace

void cuda_forward(const AttentionForward& args, const AttentionChoice& picked, int processors,
                  CUstream_st* stream) {
  const AttentionChoice choice = runnable(args, picked);
  switch (choice.kernel) {
    case AttentionKernel::hopper:
      if (choice.strategy == AttentionStrategy::split)
        return hopper_split(args, static_cast<int>(choice.tile_q), static_cast<int>(choice.splits),
                            stream);
      return hopper_forward(args, processors, stream);
    case AttentionKernel::portable:
      return portable_forward(args, choice, stream);
    case AttentionKernel::naive:
      return naive_forward(args, stream);
    default:
      return plain_forward(args, stream);
  }
}

void cuda_backward(const AttentionBackward& args, const AttentionChoice& picked, int processors,
                   CUstream_st* stream) {
  const AttentionChoice choice = runnable(args, picked);
  switch (choice.kernel) {
    case AttentionKernel::hopper:
      return hopper_backward(args, processors, stream);
    case AttentionKernel::portable:
      return portable_backward(args, choice, stream);
    case AttentionKernel::naive:
      return naive_backward(args, stream);
    default:
      return plain_backward(args, stream);
  }
}

}  // namespace tilefold::attention
