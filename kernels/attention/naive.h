// The materializing strategy on a GPU: scores, softmax and products as kernels of their own, with P
// (and dS) in device memory in the input type. For comparison, and for probabilities that are kept.
// Every option of the contract; float32, bfloat16, float16; sums in a fixed order.
#pragma once

#include <cstdint>

#include "contract/attention.h"

struct CUstream_st;

namespace tilefold::attention {

std::int64_t naive_workspace(const AttentionProblem& problem);  // plain C++

void naive_forward(const AttentionForward& args, CUstream_st* stream);
void naive_backward(const AttentionBackward& args, CUstream_st* stream);

}  // namespace tilefold::attention
