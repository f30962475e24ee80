// The CPU's implementation of each contract; src/cpu/backend.cc puts them in the table. Arguments
// were checked by src/ops.
#pragma once

#include "device/backend.h"
#include "device/device.h"

namespace tilefold::cpu {

void attention_forward(Stream&, const AttentionForward&, const AttentionChoice&);
void attention_backward(Stream&, const AttentionBackward&, const AttentionChoice&);
void linear_forward(Stream&, const LinearForward&);
void linear_backward(Stream&, const LinearBackward&);
void residual_norm_forward(Stream&, const ResidualNormForward&);
void residual_norm_backward(Stream&, const ResidualNormBackward&);
void swiglu_forward(Stream&, const SwigluForward&);
void swiglu_backward(Stream&, const SwigluBackward&);
void rope(Stream&, const Rope&);
void embedding_forward(Stream&, const EmbeddingForward&);
void embedding_backward(Stream&, const EmbeddingBackward&);
void loss_head(Stream&, const LossHead&);
void grad_square_sum(Stream&, const GradSquareSum&);
void adamw(Stream&, const AdamW&);
void cache_append(Stream&, const CacheAppend&);
void normed_linear(Stream&, const NormedLinear&);
void linear_add(Stream&, const LinearAdd&);
void likeliest(Stream&, const Likeliest&);
void fill(Stream&, const Fill&);
void copy(Stream&, const Copy&);

}  // namespace tilefold::cpu
