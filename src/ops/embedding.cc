#include "contract/embedding.h"

#include "ops/check.h"
#include "ops/ops.h"

namespace tilefold::ops {

void embedding_forward(Context ctx, const EmbeddingForward& args) {
  const Check check("embedding_forward");
  check.leads("x", args.x, 2, "[tokens, width]");
  const std::int64_t tokens = args.x.shape[0], width = args.x.shape[1];
  check.dense("x", args.x, {tokens, width}, "[tokens, width]");
  check.dense("tokens", args.tokens, {tokens}, "[tokens]");
  check.dtype("tokens", args.tokens, DType::i32);
  check.leads("table", args.table, 2, "[vocab, width]");
  check.floating("table", args.table);
  check.dense("table", args.table, {args.table.shape[0], width}, "[vocab, width]");
  check.dtype("x", args.x, args.table.dtype, sum_dtype(args.table.dtype));
  if (args.position_table) {
    check.leads("position_table", args.position_table, 2, "[context, width]");
    check.dense("position_table", args.position_table, {args.position_table.shape[0], width},
                "[context, width]");
    check.dtype("position_table", args.position_table, args.table.dtype);
    check.dense("positions", args.positions, {tokens}, "[tokens]");
    check.dtype("positions", args.positions, DType::i32);
  }
  check.dropout(args.dropout, tokens);
  if (tokens == 0) return;
  ctx.device.backend().embedding_forward(ctx.stream, args);
}

void embedding_backward(Context ctx, const EmbeddingBackward& args) {
  const Check check("embedding_backward");
  check.leads("dx", args.dx, 2, "[tokens, width]");
  const std::int64_t tokens = args.dx.shape[0], width = args.dx.shape[1];
  check.floating("dx", args.dx);
  check.dense("dx", args.dx, {tokens, width}, "[tokens, width]");
  check.dense("tokens", args.tokens, {tokens}, "[tokens]");
  check.dtype("tokens", args.tokens, DType::i32);
  check.leads("dtable", args.dtable, 2, "[vocab, width]");
  check.dense("dtable", args.dtable, {args.dtable.shape[0], width}, "[vocab, width]");
  check.dtype("dtable", args.dtable, sum_dtype(args.dx.dtype));
  if (args.dposition_table) {
    check.leads("dposition_table", args.dposition_table, 2, "[context, width]");
    check.dense("dposition_table", args.dposition_table, {args.dposition_table.shape[0], width},
                "[context, width]");
    check.dtype("dposition_table", args.dposition_table, sum_dtype(args.dx.dtype));
    check.dense("positions", args.positions, {tokens}, "[tokens]");
    check.dtype("positions", args.positions, DType::i32);
  }
  check.dropout(args.dropout, tokens);
  if (tokens == 0) return;
  ctx.device.backend().embedding_backward(ctx.stream, args);
}

}  // namespace tilefold::ops
