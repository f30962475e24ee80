// Attention without tensor cores: one warp a row, float32 throughout. Any strides, width up to 256,
// float32, bfloat16 and float16, dropout; sums in a fixed order. For what the fast kernels do not
// take, and for comparing the GPU with the CPU in float32.
#pragma once

#include <cstdint>
#include <string>

#include "contract/attention.h"

struct CUstream_st;

namespace tilefold::attention {

// Why it cannot run this problem, naming the argument; empty if it can. Plain C++, as the next.
std::string plain_refusal(const AttentionProblem& problem);
std::int64_t plain_workspace(const AttentionProblem& problem);  // D of each row, for backward

void plain_forward(const AttentionForward& args, CUstream_st* stream);
void plain_backward(const AttentionBackward& args, CUstream_st* stream);

}  // namespace tilefold::attention
