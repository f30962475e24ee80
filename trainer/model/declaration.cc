// What the declarations of all parts use.
#include <algorithm>

#include "base/error.h"
#include "ops/ops.h"
#include "trainer/model/parts.h"

namespace tilefold {

std::string layer_name(std::int64_t layer) { return str("layer ", layer); }

TensorId Declaration::rows(const std::string& layer, const char* name, std::int64_t width,
                           DType dtype, Kind kind, int born, int last) {
  return plan.scratch(layer, name, {tokens(), width}, dtype, kind, born, last);
}

TensorId Declaration::activation(const std::string& layer, const char* name, std::int64_t width,
                                 int now, int last) {
  return training() ? rows(layer, name, width, sizes.dtype, Kind::saved, now, last)
                    : rows(layer, name, width, sizes.dtype, Kind::workspace, now, now);
}

TensorId Declaration::workspace(const std::string& layer, std::int64_t bytes, int now) {
  if (bytes == 0) return kNoTensor;
  return plan.scratch(layer, "workspace", {bytes}, DType::u8, Kind::workspace, now, now);
}

std::int64_t Declaration::most(FunctionRef<std::int64_t(std::int64_t)> bytes) const {
  std::int64_t most = 0;
  for (std::int64_t s = 1; s <= samples; ++s) most = std::max(most, bytes(s));
  return most;
}

std::int64_t Declaration::linear_bytes(std::int64_t in, std::int64_t out) const {
  return most([&](std::int64_t s) {
    return linear_workspace({.tokens = s * seq, .in = in, .out = out, .dtype = sizes.dtype},
                            device);
  });
}

std::int64_t Declaration::norm_backward_bytes() const {
  return residual_norm_backward_workspace(tokens(), sizes.width, sizes.dtype, device);
}

AttentionProblem Declaration::attention_problem(std::int64_t of_samples, std::int64_t of_seq,
                                                bool backward) const {
  AttentionProblem p;
  const bool packed = documents > 0;
  p.batch = packed ? 1 : of_samples;
  p.seq_q = packed ? of_samples * of_seq : of_seq;
  p.seq_k = purpose == Purpose::generate ? cache_length : p.seq_q;
  p.heads = sizes.heads;
  p.kv_heads = sizes.kv_heads;
  p.d = sizes.d;
  p.documents = documents;  // fewer samples may have as many
  p.max_seq_q = of_seq;
  p.max_seq_k = packed ? of_seq : p.seq_k;
  p.dtype = sizes.dtype;
  p.options = sizes.attention;
  p.options.strategy = backward ? pass.backward : pass.forward;
  p.options.dropout.p = training() ? sizes.dropout : 0;
  p.backward = backward;
  return p;
}

void pick_strategies(Declaration& d) {
  d.pass.forward = d.pass.backward = d.sizes.strategy;
  d.pass.forward =
      select_attention(d.attention_problem(d.samples, d.seq, false), d.device).strategy;
  if (d.training())
    d.pass.backward =
        select_attention(d.attention_problem(d.samples, d.seq, true), d.device).strategy;
}

}  // namespace tilefold
