// The portable kernels' door, from compute capability 8.0 on: strategies tiled, split and decode
// forward, and the backward. bfloat16 and float16 on tensor cores, float32 by multiply-adds; any
// strides and head width to 256, every option of the contract; sums in a fixed order.
#pragma once

#include <cstdint>
#include <string>

#include "contract/attention.h"
#include "kernels/attention/select.h"

struct CUstream_st;

namespace tilefold::attention {

// Why these kernels cannot run the problem on such a device, naming the argument; empty if they
// can. Plain C++, as the next two.
std::string portable_refusal(const AttentionProblem& problem, const DeviceInfo& device);
// Bytes of partial results of `rows` query rows, each counted once a part.
std::int64_t partials_bytes(std::int64_t rows, std::int64_t d);
// Bytes of partial gradients of `rows` rows of q, k and v, each counted once a part.
std::int64_t gradient_parts_bytes(std::int64_t rows, std::int64_t d);
std::int64_t portable_workspace(const AttentionProblem& problem, std::int64_t parts);

// Queue the work. choice: strategy tiled, split or decode, and into how many parts the keys are
// cut; backward also into how many the queries are, for dK and dV.
void portable_forward(const AttentionForward& args, const AttentionChoice& choice,
                      CUstream_st* stream);
void portable_backward(const AttentionBackward& args, const AttentionChoice& choice,
                       CUstream_st* stream);

}  // namespace tilefold::attention
