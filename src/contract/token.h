// Linear layers of one token with what stands around them in a Llama block, in one op: generation
// makes a token by few ops, each bound by the bytes of its weight.
//
//   n = x / sqrt(mean(x^2) + eps) w          the rms norm of contract/norm.h
//   z = n W^T                                contract/linear.h
//   none     y = z
//   swiglu   z = (g, u)       y = silu(g) u  contract/pointwise.h
//   heads    z = (q, k, v)    q and k turned to the place's angle (Rope); y = q, k and v become the
//                             place's row of the caches (contract/cache.h)
//
//   linear_add    y += x W^T
//
// What the ops named there would store between them (n, z and what is added) is rounded to the
// model's dtype here too.
#pragma once

#include <cstdint>

#include "base/tensor.h"

namespace tilefold {

enum class TokenEpilogue : std::uint8_t { none, swiglu, heads };

struct NormedLinear {
  float eps = 1e-5f;
  ConstTensor x = {};       // [1, in] residual dtype
  ConstTensor norm = {};    // [in] w, model dtype
  ConstTensor weight = {};  // [out, in]; heads: out = (heads + 2 kv_heads) d
  TokenEpilogue epilogue = TokenEpilogue::none;
  // [1, out] model dtype or float32 (none), [1, out / 2] (swiglu) or [1, heads d] of model dtype.
  Tensor y = {};
  // Of heads alone. The place is position and row of the cache, read on the device: outside the
  // table it makes NaN on a GPU, an error on the CPU; outside the cache k and v are left out.
  ConstTensor place = {};             // [1] i32
  ConstTensor table = {};             // [context, d]: Rope::table
  Tensor k_cache = {}, v_cache = {};  // [1, cache, kv_heads, d] model dtype, dense
};

struct LinearAdd {
  ConstTensor x;       // [1, in] model dtype
  ConstTensor weight;  // [out, in]
  Tensor y;            // [1, out] residual dtype
};

// Greedy choice: the first of the largest of the logits below `usable`; -1 - i where logit i is the
// first NaN among them.
struct Likeliest {
  ConstTensor logits;       // [vocab] float32 (float64 for f64)
  std::int64_t usable = 0;  // 1 to vocab
  Tensor token;             // [1] i32
};

}  // namespace tilefold
