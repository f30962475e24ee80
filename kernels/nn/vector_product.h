// Linear layers of one token, as generation has them: y = W x + b in one kernel.
#pragma once

#include "kernels/nn/ops.h"

namespace tilefold::nn {

// One token, and rows of 16-byte pieces.
bool takes_vector_product(const LinearForward& args);
// z: [1, out] of x's dtype or float32. REQUIRES: takes_vector_product(args).
void vector_product(const Queue& queue, const LinearForward& args, const Tensor& z);

}  // namespace tilefold::nn
