#include "contract/pointwise.h"
#include "ops/check.h"
#include "ops/ops.h"

namespace tilefold::ops {

void swiglu_forward(Context ctx, const SwigluForward& args) {
  const Check check("swiglu_forward");
  check.leads("y", args.y, 2, "[tokens, ffn]");
  const std::int64_t tokens = args.y.shape[0], ffn = args.y.shape[1];
  check.floating("y", args.y);
  check.dense("y", args.y, {tokens, ffn}, "[tokens, ffn]");
  check.dense("gate_up", args.gate_up, {tokens, 2 * ffn}, "[tokens, 2 * ffn]");
  check.dtype("gate_up", args.gate_up, args.y.dtype);
  if (tokens == 0) return;
  ctx.device.backend().swiglu_forward(ctx.stream, args);
}

void swiglu_backward(Context ctx, const SwigluBackward& args) {
  const Check check("swiglu_backward");
  check.leads("dy", args.dy, 2, "[tokens, ffn]");
  const std::int64_t tokens = args.dy.shape[0], ffn = args.dy.shape[1];
  check.floating("dy", args.dy);
  check.dense("dy", args.dy, {tokens, ffn}, "[tokens, ffn]");
  check.dense("gate_up", args.gate_up, {tokens, 2 * ffn}, "[tokens, 2 * ffn]");
  check.dtype("gate_up", args.gate_up, args.dy.dtype);
  check.dense("dgate_up", args.dgate_up, {tokens, 2 * ffn}, "[tokens, 2 * ffn]");
  check.dtype("dgate_up", args.dgate_up, args.dy.dtype);
  if (tokens == 0) return;
  ctx.device.backend().swiglu_backward(ctx.stream, args);
}

}  // namespace tilefold::ops
