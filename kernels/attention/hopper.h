// The Hopper kernels' door: from the contract's arguments to kernel parameters. Arguments were
// checked by the op; what these kernels cannot do is said by hopper_refusal() and hopper_copies().
#pragma once

#include <cstdint>
#include <string>

#include "contract/attention.h"

struct CUstream_st;

namespace tilefold::attention {

// Why the Hopper kernels cannot run this problem on such a device, naming the argument; empty if
// they can. Plain C++, as the two after it.
std::string hopper_refusal(const AttentionProblem& problem, int compute_capability);
std::int64_t hopper_workspace(const AttentionProblem& problem);

// Of a problem that they can run: why not in parts of the keys; empty if so too.
std::string hopper_split_refusal(const AttentionProblem& problem);

// Whether the copy engine can move all tensors: their addresses and strides are multiples of 16
// bytes, strides above 0.
bool hopper_copies(const AttentionForward& args);
bool hopper_copies(const AttentionBackward& args);

// Queue the work; `processors` multiprocessors are there. REQUIRE hopper_copies: throw Error
// naming the tensor that the copy engine cannot move.
void hopper_forward(const AttentionForward& args, int processors, CUstream_st* stream);
// In query tiles of `rows` (64 or 128) rows, the keys in 1, 2, 4, 8 or 16 parts; without workspace.
void hopper_split(const AttentionForward& args, int rows, int parts, CUstream_st* stream);
void hopper_backward(const AttentionBackward& args, int processors, CUstream_st* stream);

}  // namespace tilefold::attention
