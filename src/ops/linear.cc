#include "contract/linear.h"

#include "ops/check.h"
#include "ops/ops.h"

namespace tilefold::ops {
namespace {

// [tokens, in] and [out, in] of x and weight.
LinearProblem check_operands(const Check& check, const ConstTensor& x, const ConstTensor& weight) {
  check.leads("x", x, 2, "[tokens, in]");
  check.leads("weight", weight, 2, "[out, in]");
  const LinearProblem p{
      .tokens = x.shape[0], .in = x.shape[1], .out = weight.shape[0], .dtype = x.dtype};
  if (p.out < 1) check.fail("weight has no rows; [out, in] with out of at least 1 is needed");
  check.floating("x", x);
  check.rows("x", x, {p.tokens, p.in}, "[tokens, in]");
  check.dense("weight", weight, {p.out, p.in}, "[out, in]");
  check.dtype("weight", weight, x.dtype);
  return p;
}

}  // namespace

void linear_forward(Context ctx, const LinearForward& args) {
  const Check check("linear_forward");
  const LinearProblem p = check_operands(check, args.x, args.weight);
  check.rows("y", args.y, {p.tokens, p.out}, "[tokens, out]");
  check.dtype("y", args.y, p.dtype, sum_dtype(p.dtype));
  if (args.bias) {
    check.dense("bias", args.bias, {p.out}, "[out]");
    check.dtype("bias", args.bias, p.dtype);
  }
  if (args.epilogue == Epilogue::gelu) {
    check.rows("pre", args.pre, {p.tokens, p.out}, "[tokens, out]");
    check.dtype("pre", args.pre, p.dtype);
  } else {
    check.absent("pre", args.pre, "without an epilogue");
  }
  check.workspace(args.workspace, linear_workspace(p, ctx.device.info()));
  if (p.tokens == 0) return;
  ctx.device.backend().linear_forward(ctx.stream, args);
}

void linear_backward(Context ctx, const LinearBackward& args) {
  const Check check("linear_backward");
  const LinearProblem p = check_operands(check, args.x, args.weight);
  check.rows("dy", args.dy, {p.tokens, p.out}, "[tokens, out]");
  check.dtype("dy", args.dy, p.dtype);
  check.dense("dweight", args.dweight, {p.out, p.in}, "[out, in]");
  check.dtype("dweight", args.dweight, sum_dtype(p.dtype));
  if (args.dbias) {
    check.dense("dbias", args.dbias, {p.out}, "[out]");
    check.dtype("dbias", args.dbias, sum_dtype(p.dtype));
  }
  if (args.dx) {
    check.rows("dx", args.dx, {p.tokens, p.in}, "[tokens, in]");
    check.dtype("dx", args.dx, p.dtype);
  }
  if (args.x_pre) {
    check.present("dx", args.dx, "where x_pre is given");
    check.rows("x_pre", args.x_pre, {p.tokens, p.in}, "[tokens, in]");
    check.dtype("x_pre", args.x_pre, p.dtype);
  }
  check.workspace(args.workspace, linear_workspace(p, ctx.device.info()));
  if (p.tokens == 0) return;
  ctx.device.backend().linear_backward(ctx.stream, args);
}

}  // namespace tilefold::ops
