// The doors of all ops. Each checks its arguments before anything runs (Error naming the argument,
// its value and what is allowed), picks, and calls the device's backend. Thread-safety: as the
// device's stream. One source file per op.
#pragma once

#include "device/device.h"
#include "kernels/attention/select.h"

namespace tilefold::ops {

void attention_forward(Context ctx, const AttentionForward& args);
void attention_backward(Context ctx, const AttentionBackward& args);
// Bytes that attention's workspace needs for this problem on this device; shared by plan and op.
std::int64_t attention_workspace(const AttentionProblem& problem, const DeviceInfo& device);

void linear_forward(Context ctx, const LinearForward& args);
void linear_backward(Context ctx, const LinearBackward& args);
void residual_norm_forward(Context ctx, const ResidualNormForward& args);
void residual_norm_backward(Context ctx, const ResidualNormBackward& args);
void swiglu_forward(Context ctx, const SwigluForward& args);
void swiglu_backward(Context ctx, const SwigluBackward& args);
void rope(Context ctx, const Rope& args);
void embedding_forward(Context ctx, const EmbeddingForward& args);
void embedding_backward(Context ctx, const EmbeddingBackward& args);
void loss_head(Context ctx, const LossHead& args);
void grad_square_sum(Context ctx, const GradSquareSum& args);
void adamw(Context ctx, const AdamW& args);
void cache_append(Context ctx, const CacheAppend& args);
void normed_linear(Context ctx, const NormedLinear& args);
void linear_add(Context ctx, const LinearAdd& args);
void likeliest(Context ctx, const Likeliest& args);
void fill(Context ctx, const Fill& args);
void copy(Context ctx, const Copy& args);

}  // namespace tilefold::ops
