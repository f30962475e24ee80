#include "contract/pointwise.h"

#include "ops/check.h"
#include "ops/ops.h"

namespace tilefold::ops {

void fill(Context ctx, const Fill& args) {
  const Check check("fill");
  check.dense("x", args.x, args.x.shape, "x");
  if (args.x.numel() == 0) return;
  ctx.device.backend().fill(ctx.stream, args);
}

void copy(Context ctx, const Copy& args) {
  const Check check("copy");
  if (!(args.src.shape == args.dst.shape))
    check.fail(str("src has shape ", args.src.shape.text(), " and dst ", args.dst.shape.text(),
                   "; they must be equal"));
  if (args.src.dtype != args.dst.dtype &&
      !(is_floating(args.src.dtype) && is_floating(args.dst.dtype)))
    check.fail(str("src is ", name_of(args.src.dtype), " and dst ", name_of(args.dst.dtype),
                   "; integers are copied to their own dtype only"));
  if (args.src.numel() == 0) return;
  if (!args.src || !args.dst) check.fail("src or dst is empty");
  ctx.device.backend().copy(ctx.stream, args);
}

}  // namespace tilefold::ops
