#include "contract/token.h"

#include "ops/check.h"
#include "ops/ops.h"

namespace tilefold::ops {
namespace {

void check_heads(const Check& check, const NormedLinear& args, std::int64_t out) {
  check.leads("k_cache", args.k_cache, 4, "[1, cache, kv_heads, d]");
  const Shape& cache = args.k_cache.shape;
  const std::int64_t kv = cache[2], d = cache[3], heads = out / d - 2 * kv;
  if (d % 2 != 0) check.fail(str("k_cache has width d = ", d, "; an even one is needed"));
  if (heads < 1 || out % d != 0)
    check.fail(str("weight has ", out, " rows; (heads + 2 kv_heads) d with k_cache's kv_heads = ",
                   kv, ", d = ", d, " is needed"));
  for (const Tensor* t : {&args.k_cache, &args.v_cache}) {
    const char* name = t == &args.k_cache ? "k_cache" : "v_cache";
    check.dense(name, *t, {1, cache[1], kv, d}, "[1, cache, kv_heads, d]");
    check.dtype(name, *t, args.weight.dtype);
  }
  check.dense("y", args.y, {1, heads * d}, "[1, heads d]");
  check.dense("place", args.place, {1}, "[1]");
  check.dtype("place", args.place, DType::i32);
  check.leads("table", args.table, 2, "[context, d]");
  check.dense("table", args.table, {args.table.shape[0], d}, "[context, d]");
  check.dtype("table", args.table, sum_dtype(args.weight.dtype));
}

}  // namespace

void normed_linear(Context ctx, const NormedLinear& args) {
  const Check check("normed_linear");
  check.leads("weight", args.weight, 2, "[out, in]");
  check.floating("weight", args.weight);
  const std::int64_t out = args.weight.shape[0], in = args.weight.shape[1];
  const DType dtype = args.weight.dtype;
  check.dense("weight", args.weight, {out, in}, "[out, in]");
  check.dense("x", args.x, {1, in}, "[1, in]");
  check.dtype("x", args.x, dtype, sum_dtype(dtype));
  check.dense("norm", args.norm, {in}, "[in]");
  check.dtype("norm", args.norm, dtype);
  if (args.epilogue == TokenEpilogue::none) {
    check.dense("y", args.y, {1, out}, "[1, out]");
    check.dtype("y", args.y, dtype, sum_dtype(dtype));
  } else {
    check.dtype("y", args.y, dtype);
    if (args.epilogue == TokenEpilogue::heads) {
      check_heads(check, args, out);
    } else {
      if (out % 2 != 0)
        check.fail(str("weight has ", out, " rows; an even number, gate and up, is needed"));
      check.dense("y", args.y, {1, out / 2}, "[1, out / 2]");
    }
  }
  if (args.epilogue != TokenEpilogue::heads)
    for (const auto& [name, t] : {std::pair{"place", args.place},
                                  {"table", args.table},
                                  {"k_cache", ConstTensor(args.k_cache)},
                                  {"v_cache", ConstTensor(args.v_cache)}})
      check.absent(name, t, "without heads");
  ctx.device.backend().normed_linear(ctx.stream, args);
}

void linear_add(Context ctx, const LinearAdd& args) {
  const Check check("linear_add");
  check.leads("weight", args.weight, 2, "[out, in]");
  check.floating("weight", args.weight);
  const std::int64_t out = args.weight.shape[0], in = args.weight.shape[1];
  check.dense("weight", args.weight, {out, in}, "[out, in]");
  check.dense("x", args.x, {1, in}, "[1, in]");
  check.dtype("x", args.x, args.weight.dtype);
  check.dense("y", args.y, {1, out}, "[1, out]");
  check.dtype("y", args.y, args.weight.dtype, sum_dtype(args.weight.dtype));
  ctx.device.backend().linear_add(ctx.stream, args);
}

void likeliest(Context ctx, const Likeliest& args) {
  const Check check("likeliest");
  check.leads("logits", args.logits, 1, "[vocab]");
  const std::int64_t vocab = args.logits.shape[0];
  check.dense("logits", args.logits, {vocab}, "[vocab]");
  check.dtype("logits", args.logits, DType::f32, DType::f64);
  if (args.usable < 1 || args.usable > vocab || args.usable >= std::int64_t{1} << 31)
    check.fail(str("usable is ", args.usable, "; allowed: 1 to vocab ", vocab, ", below 2^31"));
  check.dense("token", args.token, {1}, "[1]");
  check.dtype("token", args.token, DType::i32);
  ctx.device.backend().likeliest(ctx.stream, args);
}

}  // namespace tilefold::ops
