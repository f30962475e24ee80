#include "base/error.h"
#include "kernels/attention/plain.cuh"
#include "kernels/attention/plain.h"

namespace tilefold::attention {
void plain_forward(const AttentionForward& args, CUstream_st* stream) {
  Params p = params_of(args, 1, 1);
  if (args.q.dtype == DType::f32) return launch_plain_forward<float>(p, stream);
  if (args.q.dtype == DType::bf16) return launch_plain_forward<bf16>(p, stream);
  launch_plain_forward<f16>(p, stream);
}

void plain_backward(const AttentionBackward& args, CUstream_st* stream) {
  Params p = params_of(args, 1, 1);
  p.d_o = strided(args.d_o);
  p.dq = strided(args.dq);
  p.dk = strided(args.dk);
  p.dv = strided(args.dv);
  p.sums = reinterpret_cast<float*>(args.workspace.data());
  if (args.q.dtype == DType::f32) return launch_plain_backward<float>(p, stream);
  if (args.q.dtype == DType::bf16) return launch_plain_backward<bf16>(p, stream);
  launch_plain_backward<f16>(p, stream);
}

}  // namespace tilefold::attention
