#include "base/error.h"
#include "kernels/attention/plain.cuh"
#include "kernels/attention/plain.h"

namespace tilefold::attention {
namespace {

PlainTensor plain_tensor(const ConstTensor& t) {
  return {const_cast<void*>(t.data), t.strides[0], t.strides[1], t.strides[2]};
}

template <class Args>
PlainParams plain_params(const Args& args) {
  const AttentionProblem problem = problem_of(args);
  const std::int64_t right = effective_window_right(args.options);
  const PackedDocuments& packed = args.documents;
  PlainParams p{};
  p.q = plain_tensor(args.q);
  p.k = plain_tensor(args.k);
  p.v = plain_tensor(args.v);
  p.o = plain_tensor(args.o);
  if (packed.cu_seqlens_q)
    p.documents = {.q = packed.cu_seqlens_q.data,
                   .k = packed.cu_seqlens_k.data,
                   .wide_q = packed.cu_seqlens_q.dtype == DType::i64,
                   .wide_k = packed.cu_seqlens_k.dtype == DType::i64,
                   .count = static_cast<int>(packed.cu_seqlens_q.shape[0] - 1)};
  const std::int64_t left = args.options.window_left;
  p.window = {left < 0 ? kUnlimited : least(left, kUnlimited),
              right < 0 ? kUnlimited : least(right, kUnlimited)};
  p.batch = static_cast<int>(problem.batch);
  p.heads = static_cast<int>(problem.heads);
  p.key_heads = static_cast<int>(problem.kv_heads);
  p.group = static_cast<int>(problem.heads / problem.kv_heads);
  p.seq_q = static_cast<int>(problem.seq_q);
  p.seq_k = static_cast<int>(problem.seq_k);
  p.d = static_cast<int>(problem.d);
  p.scale = static_cast<float>(effective_scale(args.options, problem.d));
  p.softcap = args.options.softcap;
  p.dropout = args.options.dropout;
  return p;
}

}  // namespace

void plain_forward(const AttentionForward& args, CUstream_st* stream) {
  PlainParams p = plain_params(args);
  p.m = args.m.template as<float>();
  p.l = args.l.template as<float>();
  if (args.q.dtype == DType::f32) return launch_plain_forward<float>(p, stream);
  if (args.q.dtype == DType::bf16) return launch_plain_forward<bf16>(p, stream);
  launch_plain_forward<f16>(p, stream);
}

void plain_backward(const AttentionBackward& args, CUstream_st* stream) {
  PlainParams p = plain_params(args);
  p.m = const_cast<float*>(args.m.template as<float>());
  p.l = const_cast<float*>(args.l.template as<float>());
  p.d_o = plain_tensor(args.d_o);
  p.dq = plain_tensor(args.dq);
  p.dk = plain_tensor(args.dk);
  p.dv = plain_tensor(args.dv);
  p.sums = reinterpret_cast<float*>(args.workspace.data());
  if (args.q.dtype == DType::f32) return launch_plain_backward<float>(p, stream);
  if (args.q.dtype == DType::bf16) return launch_plain_backward<bf16>(p, stream);
  launch_plain_backward<f16>(p, stream);
}

}  // namespace tilefold::attention
