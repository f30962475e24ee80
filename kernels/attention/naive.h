// The materializing strategy on a GPU: scores, softmax and products as kernels of their own, with P
// (and dS) in device memory in the input type. For comparison, and for probabilities that are kept.
// Every option of the contract; float32, bfloat16, float16; sums in a fixed order.
#pragma once

#include <cstdint>
#include <string>

#include "base/device_info.h"
#include "contract/attention.h"

struct CUstream_st;

namespace tilefold::attention {

// Why it cannot run the problem on such a device; empty if it can. Plain C++, as the next.
std::string naive_refusal(const AttentionProblem& problem, const DeviceInfo& device);
std::int64_t naive_workspace(const AttentionProblem& problem);

void naive_forward(const AttentionForward& args, CUstream_st* stream);
void naive_backward(const AttentionBackward& args, CUstream_st* stream);

}  // namespace tilefold::attention
