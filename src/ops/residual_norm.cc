#include "contract/norm.h"
#include "ops/check.h"
#include "ops/ops.h"

namespace tilefold::ops {
namespace {

// The residual stream is kept in the model's dtype or in float32.
void check_residual_dtype(const Check& check, const char* name, const ConstTensor& t, DType model) {
  check.dtype(name, t, model, sum_dtype(model));
}

}  // namespace

void residual_norm_forward(Context ctx, const ResidualNormForward& args) {
  const Check check("residual_norm_forward");
  check.leads("residual", args.residual, 2, "[tokens, width]");
  const std::int64_t tokens = args.residual.shape[0], width = args.residual.shape[1];
  const Shape rows{tokens, width};
  check.floating("y", args.y);
  const DType model = args.y.dtype;
  check.dense("y", args.y, rows, "[tokens, width]");
  check.dense("residual", args.residual, rows, "[tokens, width]");
  check_residual_dtype(check, "residual", args.residual, model);
  if (args.branch) {
    check.dense("branch", args.branch, rows, "[tokens, width]");
    check.dtype("branch", args.branch, model);
    check.dense("sum", args.sum, rows, "[tokens, width]");
    check.dtype("sum", args.sum, args.residual.dtype);
  } else {
    check.absent("sum", args.sum, "without a branch");
  }
  check.dense("weight", args.weight, {width}, "[width]");
  check.dtype("weight", args.weight, model);
  if (args.bias) {
    check.dense("bias", args.bias, {width}, "[width]");
    check.dtype("bias", args.bias, model);
  }
  check.dense("rstd", args.rstd, {tokens}, "[tokens]");
  check.dtype("rstd", args.rstd, sum_dtype(model));
  if (args.kind == NormKind::layer) {
    check.dense("mean", args.mean, {tokens}, "[tokens]");
    check.dtype("mean", args.mean, sum_dtype(model));
  } else {
    check.absent("mean", args.mean, "for rms");
  }
  if (!(args.eps >= 0)) check.fail(str("eps is ", args.eps, "; allowed: 0 and above"));
  check.dropout(args.dropout, tokens);
  if (tokens == 0) return;
  ctx.device.backend().residual_norm_forward(ctx.stream, args);
}

void residual_norm_backward(Context ctx, const ResidualNormBackward& args) {
  const Check check("residual_norm_backward");
  check.leads("dy", args.dy, 2, "[tokens, width]");
  const std::int64_t tokens = args.dy.shape[0], width = args.dy.shape[1];
  const Shape rows{tokens, width};
  check.floating("dy", args.dy);
  const DType model = args.dy.dtype, sums = sum_dtype(model);
  check.dense("dy", args.dy, rows, "[tokens, width]");
  check.dense("sum", args.sum, rows, "[tokens, width]");
  check_residual_dtype(check, "sum", args.sum, model);
  check.dense("dsum", args.dsum, rows, "[tokens, width]");
  check.dtype("dsum", args.dsum, args.sum.dtype);
  if (args.dbranch) {
    check.dense("dbranch", args.dbranch, rows, "[tokens, width]");
    check.dtype("dbranch", args.dbranch, model);
  }
  check.dense("weight", args.weight, {width}, "[width]");
  check.dtype("weight", args.weight, model);
  check.dense("dweight", args.dweight, {width}, "[width]");
  check.dtype("dweight", args.dweight, sums);
  if (args.dbias) {
    check.dense("dbias", args.dbias, {width}, "[width]");
    check.dtype("dbias", args.dbias, sums);
  }
  check.dense("rstd", args.rstd, {tokens}, "[tokens]");
  check.dtype("rstd", args.rstd, sums);
  if (args.kind == NormKind::layer) {
    check.dense("mean", args.mean, {tokens}, "[tokens]");
    check.dtype("mean", args.mean, sums);
  } else {
    check.absent("mean", args.mean, "for rms");
  }
  check.dropout(args.dropout, tokens);
  check.workspace(args.workspace,
                  residual_norm_backward_workspace(tokens, width, model, ctx.device.info()));
  if (tokens == 0) return;
  ctx.device.backend().residual_norm_backward(ctx.stream, args);
}

}  // namespace tilefold::ops
