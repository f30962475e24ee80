// Ops that work element by element: SwiGLU, rotary embedding, fill and copy.
#pragma once

#include "base/tensor.h"

namespace tilefold {

// SwiGLU.  y = silu(g) u, silu(g) = g / (1 + exp(-g));
//   dg = dy u silu'(g)     du = dy silu(g)     silu'(g) = sigma(g) (1 + g (1 - sigma(g)))
struct SwigluForward {
  ConstTensor gate_up;  // [tokens, 2 * ffn]: g then u
  Tensor y;             // [tokens, ffn]
};
struct SwigluBackward {
  ConstTensor dy;       // [tokens, ffn]
  ConstTensor gate_up;  // [tokens, 2 * ffn]
  Tensor dgate_up;      // [tokens, 2 * ffn], written
};

// Rotary position embedding, in place (Su et al., RoFormer, 2021), halves paired as in Llama:
//   (a, b) = (x[c], x[c + d/2])  ->  (a cos - b sin, a sin + b cos), angle position * base^(-2c/d)
// `inverse` rotates back, which is the backward. Angles come from a table made in float64.
struct Rope {
  Tensor x;               // [batch, seq, heads, d] any strides, the last 1; d even
  ConstTensor positions;  // [batch * seq] i32, each in [0, context)
  ConstTensor table;      // [context, d]: cos of d/2 pairs, then sin; f32 (f64 for f64)
  bool inverse = false;
};
// Fills the host array table[context][d].
void make_rope_table(std::int64_t context, std::int64_t d, double base, Tensor table);

// Every element becomes `value`. Dense.
struct Fill {
  Tensor x;
  double value = 0;
};
// dst = src, same shape, any strides, converted to dst's dtype.
struct Copy {
  ConstTensor src;
  Tensor dst;
};

}  // namespace tilefold
