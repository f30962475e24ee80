// The CUDA implementation of each contract besides attention; kernels/backend.cc puts them in the
// table. Arguments were checked by src/ops. Work is queued on the stream, nothing waits; same bits
// on every run. What no kernel takes (f64, rows too wide) throws Error before a launch.
//
// The host cannot look at ids that lie on the device: a token, position or target outside its range
// makes NaN of its row or loss, so that the step stops as one that is not finite.
#pragma once

#include "contract/cache.h"
#include "contract/embedding.h"
#include "contract/linear.h"
#include "contract/loss_head.h"
#include "contract/norm.h"
#include "contract/optimizer.h"
#include "contract/pointwise.h"
#include "contract/token.h"

struct CUstream_st;

namespace tilefold::nn {

class MatrixLibrary;  // kernels/nn/matrix.h

// Where work goes.
struct Queue {
  CUstream_st* stream;
  const DeviceInfo& device;
};

void linear_forward(const Queue&, MatrixLibrary&, const LinearForward&);
void linear_backward(const Queue&, MatrixLibrary&, const LinearBackward&);
void loss_head(const Queue&, MatrixLibrary&, const LossHead&);
void residual_norm_forward(const Queue&, const ResidualNormForward&);
void residual_norm_backward(const Queue&, const ResidualNormBackward&);
void swiglu_forward(const Queue&, const SwigluForward&);
void swiglu_backward(const Queue&, const SwigluBackward&);
void rope(const Queue&, const Rope&);
void embedding_forward(const Queue&, const EmbeddingForward&);
void embedding_backward(const Queue&, const EmbeddingBackward&);
void grad_square_sum(const Queue&, const GradSquareSum&);
void adamw(const Queue&, const AdamW&);
void cache_append(const Queue&, const CacheAppend&);
void normed_linear(const Queue&, const NormedLinear&);
void linear_add(const Queue&, const LinearAdd&);
void likeliest(const Queue&, const Likeliest&);
void fill(const Queue&, const Fill&);
void copy(const Queue&, const Copy&);

}  // namespace tilefold::nn
