// Adding a branch to the residual stream, and the norm of the sum: the start of each half-layer.
#include "ops/ops.h"
#include "trainer/model/parts.h"

namespace tilefold {

NormTensors declare_norm(Declaration& d, const std::string& layer, int now, int backward,
                         int branch_backward) {
  const Sizes& s = d.sizes;
  const int last = d.training() ? backward : now;
  const Kind kind = d.training() ? Kind::saved : Kind::workspace;
  NormTensors t;
  t.residual = d.sum;
  t.branch = d.branch;
  t.site = d.branch_site;
  d.plan.extend(t.residual, now);
  if (t.branch == kNoTensor || !d.training()) {
    t.sum = t.residual;
    d.plan.extend(t.sum, last);
  } else {
    t.sum = d.rows(layer, "residual", s.width, s.residual_dtype, Kind::saved, now, last);
  }
  if (t.branch != kNoTensor) d.plan.extend(t.branch, now);
  t.y = d.rows(layer, "normed", s.width, s.dtype, kind, now, last);
  if (s.norm() == NormKind::layer)
    t.mean = d.plan.scratch(layer, "mean", {d.tokens()}, s.sum_dtype, kind, now, last);
  t.rstd = d.plan.scratch(layer, "rstd", {d.tokens()}, s.sum_dtype, kind, now, last);
  if (d.training()) {
    t.dy = d.rows(layer, "dnormed", s.width, s.dtype, Kind::workspace, backward, backward);
    if (t.branch != kNoTensor && !s.branch_gradient_is_residual())
      t.dbranch =
          d.rows(layer, "dbranch", s.width, s.dtype, Kind::workspace, backward, branch_backward);
  }
  d.sum = t.sum;
  d.branch = kNoTensor;
  return t;
}

void norm_forward(const Run& run, const NormWeights& w, const NormTensors& t) {
  ResidualNormForward f;
  f.kind = run.sizes.norm();
  f.eps = run.sizes.norm_eps;
  f.residual = run.rows(t.residual);
  f.branch = run.rows(t.branch);
  f.weight = run.weight(w.weight);
  f.bias = run.weight(w.bias);
  if (t.branch != kNoTensor) f.sum = run.rows(t.sum);
  f.y = run.rows(t.y);
  f.mean = run.row_values(t.mean);
  f.rstd = run.row_values(t.rstd);
  f.dropout = run.dropout(t.site);
  ops::residual_norm_forward(run.ctx, f);
}

void norm_backward(const Run& run, const NormWeights& w, const NormTensors& t, TensorId workspace) {
  ResidualNormBackward b;
  b.kind = run.sizes.norm();
  b.dy = run.rows(t.dy);
  b.sum = run.rows(t.sum);
  b.weight = run.weight(w.weight);
  b.mean = run.row_values(t.mean);
  b.rstd = run.row_values(t.rstd);
  b.dsum = run.rows(run.pass.dresidual);
  b.dbranch = run.rows(t.dbranch);
  b.dweight = run.grad(w.weight);
  b.dbias = run.grad(w.bias);
  b.dropout = run.dropout(t.site);
  b.workspace = run.workspace(workspace);
  ops::residual_norm_backward(run.ctx, b);
}

ConstTensor branch_gradient(const Run& run, const NormTensors& t) {
  return run.rows(t.dbranch != kNoTensor ? t.dbranch : run.pass.dresidual);
}

}  // namespace tilefold
