#include "contract/cache.h"
#include "ops/check.h"
#include "ops/ops.h"

namespace tilefold::ops {

void cache_append(Context ctx, const CacheAppend& args) {
  const Check check("cache_append");
  check.leads("k", args.k, 4, "[batch, seq, kv_heads, d]");
  check.floating("k", args.k);
  const Shape& k = args.k.shape;
  check.leads("k_cache", args.k_cache, 4, "[batch, cache, kv_heads, d]");
  const Shape cache{k[0], args.k_cache.shape[1], k[2], k[3]};
  check.dense("k_cache", args.k_cache, cache, "[batch, cache, kv_heads, d]");
  check.dense("v_cache", args.v_cache, cache, "[batch, cache, kv_heads, d]");
  if (!(args.v.shape == k))
    check.fail(str("v has shape ", args.v.shape.text(), "; k's ", k.text(), " is needed"));
  check.dtype("v", args.v, args.k.dtype);
  check.dtype("k_cache", args.k_cache, args.k.dtype);
  check.dtype("v_cache", args.v_cache, args.k.dtype);
  if (args.k.strides[3] != 1 || args.v.strides[3] != 1)
    check.fail(str("k has strides ", args.k.strides.text(), ", v ", args.v.strides.text(),
                   "; the last must be 1"));
  check.dense("places", args.places, {k[0] * k[1]}, "[batch * seq]");
  check.dtype("places", args.places, DType::i32);
  if (k[0] * k[1] == 0) return;
  ctx.device.backend().cache_append(ctx.stream, args);
}

}  // namespace tilefold::ops
