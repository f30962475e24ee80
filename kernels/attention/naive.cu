#include <algorithm>

#include "kernels/attention/hopper_tiles.h"
#include "kernels/attention/naive.h"
#include "kernels/attention/naive_kernels.h"
#include "kernels/attention/naive_layout.h"
#include "kernels/attention/tail.h"
#include "kernels/attention/tiled_backward.h"

namespace tilefold::attention {
namespace {

// The kernels of one element type and padded width.
struct Kernels {
  void (*scores)(const NaiveParams&, bool, CUstream_st*);
  void (*softmax)(const NaiveParams&, CUstream_st*);
  void (*product)(const NaiveParams&, const NaiveProduct&, bool, CUstream_st*);
  void (*sums)(const Params&, CUstream_st*);
  void (*fused)(const NaiveParams&, CUstream_st*) = nullptr;
};

template <class Element>
Kernels of_width(int width) {
  const auto pick = [&](auto a, auto b, auto c) { return width == 64 ? a : width == 128 ? b : c; };
  Kernels kernels = {pick(launch_naive_scores<Element, 64>, launch_naive_scores<Element, 128>,
                          launch_naive_scores<Element, 256>),
                     launch_naive_softmax<Element>,
                     pick(launch_naive_product<Element, 64>, launch_naive_product<Element, 128>,
                          launch_naive_product<Element, 256>),
                     launch_sums<Element>};
  if constexpr (sizeof(Element) == 2)
    kernels.fused =
        width == 64 ? launch_naive_fused<Element, 64> : launch_naive_fused<Element, 128>;
  return kernels;
}

Kernels kernels_of(const AttentionProblem& x) {
  const int width = padded_width(x.d);
  if (x.dtype == DType::f32) return of_width<float>(width);
  return x.dtype == DType::bf16 ? of_width<bf16>(width) : of_width<f16>(width);
}

// What forward and backward share; `kept` are the probabilities, or empty.
NaiveParams naive_params(const Params& p, const AttentionProblem& problem,
                         const NaiveLayout& layout, std::byte* workspace) {
  NaiveParams x{};
  x.p = p;
  x.max_rows = problem.max_seq_q;
  x.probabilities = {workspace + layout.p, layout.matrix, layout.row, true};
  x.ds = {workspace + layout.ds, layout.matrix, layout.row, true};
  x.stats = reinterpret_cast<float2*>(workspace + layout.stats);
  return x;
}

// Probabilities in the caller's array, [batch, heads, seq_q, seq_k].
Matrices kept_matrices(const ConstTensor& t) {
  const std::int64_t seq_k = t.shape[3];
  return {
      const_cast<void*>(t.data), t.shape[2] * seq_k, seq_k,
      reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && seq_k % (16 / size_of(t.dtype)) == 0};
}

// Calls work(params of the chunk) for all heads, `chunk` at a time.
template <class Work>
void for_each_chunk(NaiveParams x, const NaiveLayout& layout, const ConstTensor& kept,
                    Work&& work) {
  for (std::int64_t first = 0; first < layout.pairs; first += layout.chunk) {
    x.first_pair = static_cast<int>(first);
    x.pairs = static_cast<int>(std::min(layout.chunk, layout.pairs - first));
    if (kept) {
      x.probabilities = kept_matrices(kept);
      x.probabilities.data = static_cast<std::byte*>(x.probabilities.data) +
                             first * x.probabilities.pair * size_of(kept.dtype);
    }
    work(x);
  }
}

}  // namespace

void naive_forward(const AttentionForward& args, CUstream_st* stream) {
  const AttentionProblem problem = problem_of(args);
  const Kernels kernels = kernels_of(problem);
  const NaiveLayout layout(problem);
  if (args.documents.cu_seqlens_q) {
    clear_tail(args.o, args.documents.cu_seqlens_q, stream);
    clear_tail_constants(args.m, args.l, args.documents.cu_seqlens_q, stream);
  }
  const Params p = params_of(args, kNaiveTile, kNaiveTile);
  NaiveParams all = naive_params(p, problem, layout, args.workspace.data());
  all.kept = static_cast<bool>(args.probabilities);
  if (naive_fuses(problem)) {
    all.pairs = static_cast<int>(layout.pairs);
    if (all.kept) all.probabilities = kept_matrices(args.probabilities);
    return kernels.fused(all, stream);
  }
  for_each_chunk(all, layout, args.probabilities, [&](const NaiveParams& x) {
    kernels.scores(x, false, stream);
    kernels.softmax(x, stream);
    kernels.product(x, {x.probabilities, p.v, p.o, 1, p.dropout.p > 0}, false, stream);
  });
}

void naive_backward(const AttentionBackward& args, CUstream_st* stream) {
  const AttentionProblem problem = problem_of(args);
  const Kernels kernels = kernels_of(problem);
  const NaiveLayout layout(problem);
  if (args.documents.cu_seqlens_q) {
    clear_tail(args.dq, args.documents.cu_seqlens_q, stream);
    clear_tail(args.dk, args.documents.cu_seqlens_k, stream);
    clear_tail(args.dv, args.documents.cu_seqlens_k, stream);
  }
  Params p = params_of(args, kNaiveTile, kNaiveTile);
  p.d_o = strided(args.d_o);
  p.dq = strided(args.dq);
  p.dk = strided(args.dk);
  p.dv = strided(args.dv);
  p.sums = reinterpret_cast<float*>(args.workspace.data() + layout.sums);
  kernels.sums(p, stream);
  NaiveParams all = naive_params(p, problem, layout, args.workspace.data());
  all.kept = static_cast<bool>(args.probabilities);
  for_each_chunk(all, layout, args.probabilities, [&](const NaiveParams& x) {
    kernels.scores(x, true, stream);
    kernels.product(x, {x.ds, p.k, p.dq, p.scale, false}, false, stream);
    kernels.product(x, {x.ds, p.q, p.dk, p.scale, false}, true, stream);
    kernels.product(x, {x.probabilities, p.d_o, p.dv, 1, p.dropout.p > 0}, true, stream);
  });
}

}  // namespace tilefold::attention
