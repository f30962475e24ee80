// What the runs of all parts use: views of planned tensors in this batch's shape, linear layers.
#include "base/error.h"
#include "ops/ops.h"
#include "trainer/model/parts.h"

namespace tilefold {

ConstTensor Run::weight(int parameter) const {
  if (parameter < 0) return {};
  return arena.tensor(parameters[static_cast<std::size_t>(parameter)].weight);
}

Tensor Run::grad(int parameter) const {
  if (parameter < 0) return {};
  return arena.tensor(parameters[static_cast<std::size_t>(parameter)].grad);
}

Tensor Run::view(TensorId id, const Shape& shape) const {
  const Tensor whole = arena.tensor(id);
  expect(shape.numel() <= whole.numel(), "a batch is larger than its plan");
  return Tensor(whole.data, whole.dtype, shape);
}

Tensor Run::rows(TensorId id) const {
  if (id == kNoTensor) return {};
  return view(id, {tokens(), arena.plan()[id].shape[1]});
}

std::span<std::byte> Run::workspace(TensorId id) const {
  if (id == kNoTensor) return {};
  const Tensor bytes = arena.tensor(id);
  return {static_cast<std::byte*>(bytes.data), static_cast<std::size_t>(bytes.numel())};
}

Dropout Run::dropout(std::uint32_t site) const {
  if (state == nullptr) return {};
  return {.p = sizes.dropout, .site = site, .rows_per_sample = batch.seq, .state = state};
}

void linear_forward(const Run& run, const LinearWeights& w, ConstTensor x, Tensor y,
                    TensorId workspace) {
  LinearForward f;
  f.x = x;
  f.weight = run.weight(w.weight);
  f.bias = run.weight(w.bias);
  f.y = y;
  f.workspace = run.workspace(workspace);
  ops::linear_forward(run.ctx, f);
}

void normed_linear(const Run& run, const NormWeights& norm, const NormTensors& t,
                   const LinearWeights& w, NormedLinear normed) {
  normed.eps = run.sizes.norm_eps;
  normed.x = run.rows(t.sum);
  normed.norm = run.weight(norm.weight);
  normed.weight = run.weight(w.weight);
  ops::normed_linear(run.ctx, normed);
}

void linear_add(const Run& run, const LinearWeights& w, ConstTensor x, const NormTensors& t) {
  ops::linear_add(run.ctx, {.x = x, .weight = run.weight(w.weight), .y = run.rows(t.sum)});
}

void linear_backward(const Run& run, const LinearWeights& w, ConstTensor dy, ConstTensor x,
                     Tensor dx, TensorId workspace, ConstTensor x_pre) {
  LinearBackward b;
  b.dy = dy;
  b.x = x;
  b.weight = run.weight(w.weight);
  b.x_pre = x_pre;
  b.dx = dx;
  b.dweight = run.grad(w.weight);
  b.dbias = run.grad(w.bias);
  b.workspace = run.workspace(workspace);
  ops::linear_backward(run.ctx, b);
}

}  // namespace tilefold
