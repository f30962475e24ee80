// New tokens' keys and values into a cache, in one op.
//   k_cache[b, place[b seq + t]] = k[b, t]      v_cache likewise
// Places are read on the device, so that the work can be recorded once and replayed for later tokens.
// A place outside the cache is left out.
#pragma once

#include "base/tensor.h"

namespace tilefold {

struct CacheAppend {
  ConstTensor k, v;         // [batch, seq, kv_heads, d] any strides, the last 1; one dtype
  ConstTensor places;       // [batch * seq] i32, each in [0, cache)
  Tensor k_cache, v_cache;  // [batch, cache, kv_heads, d] of k's dtype, dense
};

}  // namespace tilefold
