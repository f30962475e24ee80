#include "contract/pointwise.h"
#include "ops/check.h"
#include "ops/ops.h"

namespace tilefold::ops {

void rope(Context ctx, const Rope& args) {
  const Check check("rope");
  check.leads("x", args.x, 4, "[batch, seq, heads, d]");
  check.floating("x", args.x);
  const std::int64_t tokens = args.x.shape[0] * args.x.shape[1], d = args.x.shape[3];
  if (d % 2 != 0) check.fail(str("x has width d = ", d, "; an even one is needed"));
  if (args.x.strides[3] != 1)
    check.fail(str("x has strides ", args.x.strides.text(), "; the last must be 1"));
  if (!args.x && tokens != 0) check.fail("x is empty; [batch, seq, heads, d] is needed");
  check.dense("positions", args.positions, {tokens}, "[batch * seq]");
  check.dtype("positions", args.positions, DType::i32);
  check.leads("table", args.table, 2, "[context, d]");
  check.dense("table", args.table, {args.table.shape[0], d}, "[context, d]");
  check.dtype("table", args.table, sum_dtype(args.x.dtype));
  if (tokens == 0) return;
  ctx.device.backend().rope(ctx.stream, args);
}

}  // namespace tilefold::ops
