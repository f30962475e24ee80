// The end of the model: the last norm, and the loss with its gradient, or logits.
#include <algorithm>

#include "ops/ops.h"
#include "trainer/model/parts.h"

namespace tilefold {

void declare_head(Declaration& d) {
  const Sizes& s = d.sizes;
  const Timeline& time = d.pass.time;
  const int now = time.head();
  HeadTensors& t = d.pass.head;
  t.norm = declare_norm(d, "head", now, now, time.mlp_backward(time.layers - 1));
  if (d.purpose == Purpose::generate) {
    t.workspace = d.workspace("head", d.linear_bytes(s.width, s.vocab), now);
    return;  // logits outlive the pass; declared by the phase
  }
  // Read after the pass.
  const int end = d.training() ? time.embedding_backward() : now;
  t.losses = d.plan.scratch("head", "losses", {d.tokens()}, s.sum_dtype, Kind::workspace, now, end);
  if (!d.training())
    t.predictions =
        d.plan.scratch("head", "predictions", {d.tokens()}, DType::i32, Kind::workspace, now, end);
  else
    d.pass.dresidual = d.rows("head", "dresidual", s.width, s.residual_dtype, Kind::workspace, now,
                              time.embedding_backward());
  const std::int64_t loss_bytes = d.most([&](std::int64_t samples) {
    return loss_head_workspace(
        {.tokens = samples * d.seq, .width = s.width, .vocab = s.vocab, .dtype = s.dtype},
        d.device);
  });
  t.workspace = d.workspace(
      "head", d.training() ? std::max(loss_bytes, d.norm_backward_bytes()) : loss_bytes, now);
}

void head_loss(const Run& run) {
  const HeadTensors& t = run.pass.head;
  const bool training = run.pass.dresidual != kNoTensor;
  norm_forward(run, run.weights.norm, t.norm);
  LossHead h;
  h.hidden = run.rows(t.norm.y);
  h.weight = run.weight(run.weights.head);
  h.targets = run.batch.targets;
  h.losses = run.row_values(t.losses);
  h.predictions = run.row_values(t.predictions);
  if (training) {
    h.loss_sum = run.arena.tensor(run.weights.loss_sum);
    h.dhidden = run.rows(t.norm.dy);
    h.dweight = run.grad(run.weights.head);
  }
  h.workspace = run.workspace(t.workspace);
  ops::loss_head(run.ctx, h);
  if (!training) return;
  ops::fill(run.ctx, {.x = run.rows(run.pass.dresidual), .value = 0});
  norm_backward(run, run.weights.norm, t.norm, t.workspace);
}

void head_logits(const Run& run) {
  const HeadTensors& t = run.pass.head;
  const std::int64_t samples = run.batch.samples, seq = run.batch.seq, width = run.sizes.width;
  const LinearWeights head{.weight = run.weights.head, .bias = -1};
  const Tensor logits = run.view(t.logits, {samples, run.sizes.vocab});
  if (run.by_token()) return normed_linear(run, run.weights.norm, t.norm, head, {.y = logits});
  norm_forward(run, run.weights.norm, t.norm);
  const Tensor last = run.rows(t.norm.y).sliced(0, seq - 1, run.tokens() - (seq - 1));
  linear_forward(run, head, Tensor(last.data, last.dtype, {samples, width}, {seq * width, 1}),
                 logits, t.workspace);
}

}  // namespace tilefold
