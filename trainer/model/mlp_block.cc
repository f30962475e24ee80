// The feed-forward half of a layer.
//   Llama   n = norm(x)   [g u] = n W_up^T   a = silu(g) u       branch = a W_down^T
//   GPT-2   n = norm(x)   z = n W_up^T + b   a = gelu(z)         branch = a W_down^T + b
#include <algorithm>

#include "ops/ops.h"
#include "trainer/model/parts.h"

namespace tilefold {

void declare_mlp(Declaration& d, int layer) {
  const Sizes& s = d.sizes;
  const Timeline& time = d.pass.time;
  const std::string name = layer_name(layer);
  const int now = time.mlp(layer), backward = time.mlp_backward(layer);
  MlpTensors& t = d.pass.mlp[static_cast<std::size_t>(layer)];

  t.norm = declare_norm(d, name, now, backward, time.attention_backward(layer));
  t.up = d.activation(name, s.llama() ? "gate_up" : "pre_gelu", s.up_width(), now, backward);
  t.act = d.activation(name, "act", s.ffn, now, backward);
  t.branch = d.rows(name, "branch", s.width, s.dtype, Kind::workspace, now, now);
  const std::int64_t linear_bytes =
      std::max(d.linear_bytes(s.width, s.up_width()), d.linear_bytes(s.ffn, s.width));
  t.workspace = d.workspace(name, linear_bytes, now);
  if (d.training()) {
    t.dact = d.rows(name, "dact", s.ffn, s.dtype, Kind::workspace, backward, backward);
    if (s.llama())
      t.dup = d.rows(name, "dgate_up", s.up_width(), s.dtype, Kind::workspace, backward, backward);
    t.workspace_backward =
        d.workspace(name, std::max(linear_bytes, d.norm_backward_bytes()), backward);
  }
  d.branch = t.branch;
  d.branch_site = mlp_branch_site(layer);
}

void mlp_forward(const Run& run, int layer) {
  const MlpWeights& w = run.weights.mlp[static_cast<std::size_t>(layer)];
  const MlpTensors& t = run.pass.mlp[static_cast<std::size_t>(layer)];
  const Tensor n = run.rows(t.norm.y), up = run.rows(t.up), act = run.rows(t.act);
  if (run.by_token()) {
    normed_linear(run, w.norm, t.norm, w.up, {.epilogue = TokenEpilogue::swiglu, .y = act});
    return linear_add(run, w.down, act, t.norm);
  }
  norm_forward(run, w.norm, t.norm);
  if (run.sizes.llama()) {
    linear_forward(run, w.up, n, up, t.workspace);
    ops::swiglu_forward(run.ctx, {.gate_up = up, .y = act});
  } else {
    LinearForward f;
    f.x = n;
    f.weight = run.weight(w.up.weight);
    f.bias = run.weight(w.up.bias);
    f.y = act;
    f.epilogue = Epilogue::gelu;
    f.pre = up;
    f.workspace = run.workspace(t.workspace);
    ops::linear_forward(run.ctx, f);
  }
  linear_forward(run, w.down, act, run.rows(t.branch), t.workspace);
}

void mlp_backward(const Run& run, int layer, ConstTensor dbranch) {
  const MlpWeights& w = run.weights.mlp[static_cast<std::size_t>(layer)];
  const MlpTensors& t = run.pass.mlp[static_cast<std::size_t>(layer)];
  const TensorId workspace = t.workspace_backward;
  const Tensor n = run.rows(t.norm.y), up = run.rows(t.up), act = run.rows(t.act);
  const Tensor dact = run.rows(t.dact);
  Tensor dup = dact;  // GPT-2: the product's backward goes through GELU
  if (run.sizes.llama()) {
    dup = run.rows(t.dup);
    linear_backward(run, w.down, dbranch, act, dact, workspace);
    ops::swiglu_backward(run.ctx, {.dy = dact, .gate_up = up, .dgate_up = dup});
  } else {
    linear_backward(run, w.down, dbranch, act, dact, workspace, up);
  }
  linear_backward(run, w.up, dup, n, run.rows(t.norm.dy), workspace);
  norm_backward(run, w.norm, t.norm, workspace);
}

}  // namespace tilefold
