// Attention on a GPU: runs the row of the table that was picked.
#pragma once

#include "contract/attention.h"
#include "kernels/attention/select.h"

struct CUstream_st;

namespace tilefold::attention {

// Queue the work; `processors` multiprocessors are there. What the copy engine of the Hopper
// kernels cannot move (addresses, strides) goes to the portable ones, which need no more workspace.
void cuda_forward(const AttentionForward& args, const AttentionChoice& choice, int processors,
                  CUstream_st* stream);
void cuda_backward(const AttentionBackward& args, const AttentionChoice& choice, int processors,
                   CUstream_st* stream);

}  // namespace tilefold::attention
