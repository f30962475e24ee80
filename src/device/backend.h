// The backend table: one function per op. Arguments were checked at the op's door (src/ops); a
// function here may assume every REQUIRES of the contract.
#pragma once

#include "contract/attention.h"
#include "contract/cache.h"
#include "contract/embedding.h"
#include "contract/linear.h"
#include "contract/loss_head.h"
#include "contract/norm.h"
#include "contract/optimizer.h"
#include "contract/pointwise.h"
#include "contract/token.h"

namespace tilefold {

class Stream;
struct AttentionChoice;  // kernels/attention/select.h: the row of the table that was picked

struct Backend {
  void (*attention_forward)(Stream&, const AttentionForward&, const AttentionChoice&);
  void (*attention_backward)(Stream&, const AttentionBackward&, const AttentionChoice&);
  void (*linear_forward)(Stream&, const LinearForward&);
  void (*linear_backward)(Stream&, const LinearBackward&);
  void (*residual_norm_forward)(Stream&, const ResidualNormForward&);
  void (*residual_norm_backward)(Stream&, const ResidualNormBackward&);
  void (*swiglu_forward)(Stream&, const SwigluForward&);
  void (*swiglu_backward)(Stream&, const SwigluBackward&);
  void (*rope)(Stream&, const Rope&);
  void (*embedding_forward)(Stream&, const EmbeddingForward&);
  void (*embedding_backward)(Stream&, const EmbeddingBackward&);
  void (*loss_head)(Stream&, const LossHead&);
  void (*grad_square_sum)(Stream&, const GradSquareSum&);
  void (*adamw)(Stream&, const AdamW&);
  void (*cache_append)(Stream&, const CacheAppend&);
  void (*normed_linear)(Stream&, const NormedLinear&);
  void (*linear_add)(Stream&, const LinearAdd&);
  void (*likeliest)(Stream&, const Likeliest&);
  void (*fill)(Stream&, const Fill&);
  void (*copy)(Stream&, const Copy&);
};

}  // namespace tilefold
