// The start of the residual stream: x_0 = dropout(E[token] + P[position]).
#include "ops/ops.h"
#include "trainer/model/parts.h"

namespace tilefold {

void declare_embedding(Declaration& d) {
  const Sizes& s = d.sizes;
  const int now = d.pass.time.embedding();
  // Counted with layer 0, whose norm keeps it as other layers keep their sums.
  d.pass.x = d.rows(layer_name(0), "residual", s.width, s.residual_dtype,
                    d.training() ? Kind::saved : Kind::workspace, now, now);
  d.sum = d.pass.x;
  d.branch = kNoTensor;
}

void embedding_forward(const Run& run) {
  EmbeddingForward f;
  f.tokens = run.batch.tokens;
  f.positions = run.batch.positions;
  f.table = run.weight(run.weights.table);
  f.position_table = run.weight(run.weights.positions);
  f.x = run.rows(run.pass.x);
  f.dropout = run.dropout(kEmbeddingSite);
  ops::embedding_forward(run.ctx, f);
}

void embedding_backward(const Run& run) {
  EmbeddingBackward b;
  b.tokens = run.batch.tokens;
  b.positions = run.batch.positions;
  b.dx = run.rows(run.pass.dresidual);
  b.dtable = run.grad(run.weights.table);
  b.dposition_table = run.grad(run.weights.positions);
  b.dropout = run.dropout(kEmbeddingSite);
  ops::embedding_backward(run.ctx, b);
}

}  // namespace tilefold
