// Rows after the last packed document belong to none: outputs and gradients are zero there, m is
// -inf and l is 0. How many there are only the device knows.
#pragma once

#include "base/tensor.h"

struct CUstream_st;

namespace tilefold::attention {

// rows [offsets[documents], seq) of a [1, seq, heads, d] tensor become zero.
void clear_tail(const Tensor& tensor, const ConstTensor& offsets, CUstream_st* stream);
// The same rows of m and l, [1, heads, seq] each.
void clear_tail_constants(const Tensor& m, const Tensor& l, const ConstTensor& offsets,
                          CUstream_st* stream);

}  // namespace tilefold::attention
