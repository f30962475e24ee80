#include "contract/optimizer.h"

#include <limits>

#include "ops/check.h"
#include "ops/ops.h"

namespace tilefold::ops {
namespace {

bool unit_interval(double x) { return x >= 0 && x < 1; }
bool not_negative(double x) { return x >= 0 && x < std::numeric_limits<double>::infinity(); }

void check_scalar(const Check& check, const char* name, double value, bool ok,
                  const char* allowed) {
  if (!ok) check.fail(str(name, " is ", value, "; allowed: ", allowed));
}

}  // namespace

void grad_square_sum(Context ctx, const GradSquareSum& args) {
  const Check check("grad_square_sum");
  std::int64_t elements = 0;
  for (const ConstTensor& grad : args.grads) {
    check.dense("grads", grad, grad.shape, "gradient");
    check.dtype("grads", grad, DType::f32, DType::f64);
    elements += grad.numel();
  }
  check.dense("sum", args.sum, {1}, "[1]");
  check.dtype("sum", args.sum, DType::f64);
  check.workspace(args.workspace,
                  grad_square_sum_workspace(elements, static_cast<std::int64_t>(args.grads.size()),
                                            ctx.device.info()));
  ctx.device.backend().grad_square_sum(ctx.stream, args);
}

void adamw(Context ctx, const AdamW& args) {
  const Check check("adamw");
  for (const AdamWParameter& p : args.parameters) {
    check.dtype("parameters.master", p.master, DType::f32, DType::f64);
    check.dense("parameters.master", p.master, p.master.shape, "master");
    check.dense("parameters.grad", p.grad, p.master.shape, "master's shape");
    check.dtype("parameters.grad", p.grad, p.master.dtype);
    check.dense("parameters.m", p.m, p.master.shape, "master's shape");
    check.dtype("parameters.m", p.m, p.master.dtype);
    check.dense("parameters.v", p.v, p.master.shape, "master's shape");
    check.dtype("parameters.v", p.v, p.master.dtype);
    if (!p.weight) continue;
    check.dense("parameters.weight", p.weight, p.master.shape, "master's shape");
    check.dtype("parameters.weight", p.weight, DType::bf16, DType::f16);
    check.dtype("parameters.master", p.master, DType::f32);
  }
  check.dense("grad_square_sum", args.grad_square_sum, {1}, "[1]");
  check.dtype("grad_square_sum", args.grad_square_sum, DType::f64);
  if (args.state == nullptr) check.fail("state is empty; a StepState in device memory is needed");
  check_scalar(check, "beta1", args.beta1, unit_interval(args.beta1), "0 and above, below 1");
  check_scalar(check, "beta2", args.beta2, unit_interval(args.beta2), "0 and above, below 1");
  check_scalar(check, "eps", args.eps, not_negative(args.eps), "0 and above");
  check_scalar(check, "weight_decay", args.weight_decay, not_negative(args.weight_decay),
               "0 and above");
  check_scalar(check, "clip", args.clip, not_negative(args.clip), "0 (none) and above");
  ctx.device.backend().adamw(ctx.stream, args);
}

}  // namespace tilefold::ops
