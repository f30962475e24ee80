#include "contract/loss_head.h"

#include "ops/check.h"
#include "ops/ops.h"

namespace tilefold::ops {

void loss_head(Context ctx, const LossHead& args) {
  const Check check("loss_head");
  check.leads("hidden", args.hidden, 2, "[tokens, width]");
  check.leads("weight", args.weight, 2, "[vocab, width]");
  const LossHeadProblem p{.tokens = args.hidden.shape[0],
                          .width = args.hidden.shape[1],
                          .vocab = args.weight.shape[0],
                          .dtype = args.hidden.dtype};
  if (p.vocab < 1)
    check.fail("weight has no rows; [vocab, width] with vocab of at least 1 is needed");
  check.floating("hidden", args.hidden);
  check.dense("hidden", args.hidden, {p.tokens, p.width}, "[tokens, width]");
  check.dense("weight", args.weight, {p.vocab, p.width}, "[vocab, width]");
  check.dtype("weight", args.weight, p.dtype);
  check.dense("targets", args.targets, {p.tokens}, "[tokens]");
  check.dtype("targets", args.targets, DType::i32);
  check.dense("losses", args.losses, {p.tokens}, "[tokens]");
  check.dtype("losses", args.losses, sum_dtype(p.dtype));
  if (args.predictions) {
    check.dense("predictions", args.predictions, {p.tokens}, "[tokens]");
    check.dtype("predictions", args.predictions, DType::i32);
  }
  if (args.loss_sum) {
    check.dense("loss_sum", args.loss_sum, {1}, "[1]");
    check.dtype("loss_sum", args.loss_sum, DType::f64);
  }
  if (args.dhidden) {
    check.dense("dhidden", args.dhidden, {p.tokens, p.width}, "[tokens, width]");
    check.dtype("dhidden", args.dhidden, p.dtype);
    check.dense("dweight", args.dweight, {p.vocab, p.width}, "[vocab, width]");
    check.dtype("dweight", args.dweight, sum_dtype(p.dtype));
  } else {
    check.absent("dweight", args.dweight, "without dhidden");
  }
  check.workspace(args.workspace, loss_head_workspace(p, ctx.device.info()));
  if (p.tokens == 0) return;
  ctx.device.backend().loss_head(ctx.stream, args);
}

}  // namespace tilefold::ops
