// Token embedding, with learned positions where the model has them, and dropout on the sum.
//   x_t = dropout(E[token_t] + P[position_t])
//   dE[v] += sum_{t: token_t = v} dropout'(dx_t)     dP[i] += sum_{t: position_t = i} dropout'(dx_t)
// The order of each sum is fixed: same bits on every run.
#pragma once

#include "base/tensor.h"
#include "contract/dropout.h"

namespace tilefold {

struct EmbeddingForward {
  ConstTensor tokens;          // [tokens] i32, each in [0, vocab)
  ConstTensor positions;       // [tokens] i32, each in [0, context); read with a position table only
  ConstTensor table;           // [vocab, width] model dtype
  ConstTensor position_table;  // [context, width] model dtype, or empty
  Tensor x;                    // [tokens, width] residual dtype
  Dropout dropout;
};

struct EmbeddingBackward {
  ConstTensor tokens;      // [tokens] i32
  ConstTensor positions;   // [tokens] i32
  ConstTensor dx;          // [tokens, width] residual dtype
  Tensor dtable;           // [vocab, width] f32 (f64 for f64), added to
  Tensor dposition_table;  // [context, width] f32 (f64 for f64), added to; or empty
  Dropout dropout;
};

}  // namespace tilefold
